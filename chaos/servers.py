"""The servers of a run, started for it alone: killed, restarted, and reached by relays through a network that fails."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit

import psutil

from tests.proxy import Proxy
from tests.services import ServerUnavailable, places
from tests.services.databases import at_database
from tests.services.kafka import Kafka
from tests.services.places import locked
from tests.services.private import PrivateServer
from tests.services.processes import end, running
from tests.services.server import DatabaseServer

from .consumer import PARTITIONS
from .plan import Destination, Store

DATABASE = "chaos"
PLACE = "orders"
GRACEFUL = {"postgresql-15": signal.SIGINT}
"""How to ask a server to shut down, if not by SIGTERM: this one would wait for its clients."""


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Within, nobody else has the server of that name."""
    places.ROOT.mkdir(exist_ok=True)
    with open(places.ROOT / f"{name}.run.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerUnavailable(f"another run in this folder uses {name}: wait until it has ended") from None
        yield


class Machine:
    """A server, and the network between it and the relays."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._private = PrivateServer(name, "chaos")
        self.address = ""
        self.proxy: Proxy

    def start(self, stack: ExitStack) -> None:
        stack.enter_context(alone(self._private.server.name))
        self._private.stop()  # a run that was killed may have left it
        stack.callback(self._private.stop)
        self.address = self._private.start()
        self.proxy = stack.enter_context(self._network())

    @property
    def version(self) -> str:
        return self._private.server.ask_version(self.address)

    @property
    def is_running(self) -> bool:
        return running(self._private.folder) is not None

    def kill(self) -> None:
        """It and its children: kill -9."""
        folder = self._private.folder
        with locked(self._private.server.name):
            pid = running(folder)
            if pid is not None:
                process = psutil.Process(pid)
                for each in [process, *process.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                end(folder, signal.SIGKILL)

    def shut_down(self) -> None:
        with locked(self._private.server.name):
            end(self._private.folder, GRACEFUL.get(self._name, signal.SIGTERM))

    def start_again(self) -> None:
        self._private.start_again()

    def _network(self) -> AbstractContextManager[Proxy]:
        return Proxy(self.address)


class DatabaseMachine(Machine):
    def start(self, stack: ExitStack) -> None:
        super().start(stack)
        cast(DatabaseServer, self._private.server).databases.create(self.address, DATABASE)

    @property
    def url(self) -> str:
        return at_database(self.address, DATABASE)

    @property
    def url_of_relays(self) -> str:
        return at_database(self.proxy.url, DATABASE)


class KafkaMachine(Machine):
    def _network(self) -> AbstractContextManager[Proxy]:
        inner, port = cast(Kafka, self._private.server).proxied()
        return Proxy(inner, port)


def database_for(store: Store) -> DatabaseMachine | None:
    return None if store == "sqlite" else DatabaseMachine({"postgresql": "postgresql-15", "mysql": "mariadb"}[store])


def broker_for(to: Destination) -> Machine | None:
    return {"kafka": lambda: KafkaMachine("kafka"), "amqp": lambda: Machine("rabbitmq"), "file": lambda: None}[to]()


def make_place(to: Destination, address: str) -> None:
    """Where messages arrive."""
    if to == "kafka":
        from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

        admin: Any = AdminClient({"bootstrap.servers": urlsplit(address).netloc})
        admin.create_topics([NewTopic(PLACE, PARTITIONS, 1)])[PLACE].result(30)
    elif to == "amqp":
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(address))
        connection.channel().queue_declare(PLACE, durable=True)
        connection.close()
