"""RabbitMQ, the distribution's, with a node and a name server of its own."""

from __future__ import annotations

import signal
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.services import packages
from tests.services.places import Account
from tests.services.processes import Command
from tests.services.server import Server, free_port

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on the path changes its user
NAMES_PORT = "names-port"
NAMES = "epmd"
"""It tells nodes where others are, is started by the first of them, and outlives it."""


class RabbitMQ(Server):
    name = "rabbitmq"
    account = Account(("rabbitmq", "nobody"))
    farewell = signal.SIGKILL  # its data is thrown away

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        packages.program("rabbitmqctl", package="rabbitmq-server")

    def prepare(self, folder: Path, port: int) -> None:
        (folder / "data").mkdir(exist_ok=True)
        self.account.own(folder / "data")
        for name in ("settings.conf", "plugins", "environment"):
            (folder / name).touch()
            self.account.own(folder / name)
        (folder / "plugins").write_text("[].\n")
        (folder / "settings.conf").write_text("loopback_users = none\ndisk_free_limit.absolute = 50MB\n")

    def command(self, folder: Path, port: int) -> Command:
        node, names = free_port(folder / "node-port"), free_port(folder / NAMES_PORT)
        variables = {
            "HOME": folder / "data",
            "RABBITMQ_ALLOW_INPUT": "yes",  # or else the node would be the child of a script
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noshell -noinput",
            "RABBITMQ_NODENAME": "postroom@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": node,
            "RABBITMQ_MNESIA_BASE": folder / "data",
            "RABBITMQ_LOG_BASE": folder / "data",
            "RABBITMQ_CONFIG_FILE": folder / "settings.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_CONF_ENV_FILE": folder / "environment",
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items()), PROGRAM]

    def address(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}/"

    def ask_version(self, url: str) -> str:
        import pika

        connection: Any = pika.BlockingConnection(pika.URLParameters(url))
        with closing(connection):
            said = connection._impl.server_properties
        return f"{said['product']} {said['version']}"

    def stop(self) -> bool:
        ran = super().stop()
        self._end_names()
        return ran

    def _end_names(self) -> None:
        note = self._folder / NAMES_PORT
        port = note.read_text() if note.exists() else None
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):
                if process.info["name"] == NAMES and process.environ().get("ERL_EPMD_PORT") == port:
                    process.kill()
