"""Mosquitto, the distribution's."""

from __future__ import annotations

import signal
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from tests.services import packages
from tests.services.places import OUR_OWN
from tests.services.processes import Command
from tests.services.server import Server

SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location {data}/
autosave_interval 1
max_queued_messages 0
"""


class Mosquitto(Server):
    name = "mosquitto"
    account = OUR_OWN
    farewell = signal.SIGKILL  # its data is thrown away

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        self._program()

    def prepare(self, folder: Path, port: int) -> None:
        data, settings = folder / "data", folder / "settings.conf"
        data.mkdir(exist_ok=True)
        self.account.own(data)
        settings.write_text(SETTINGS.format(port=port, data=data))
        self.account.own(settings)

    def command(self, folder: Path, port: int) -> Command:
        return [self._program(), "-c", folder / "settings.conf"]

    def address(self, port: int) -> str:
        return f"mqtt://127.0.0.1:{port}"

    def ask_version(self, url: str) -> str:
        """It tells its subscribers, as a retained message."""
        from paho.mqtt import client as mqtt
        from paho.mqtt.enums import CallbackAPIVersion

        parts, said = urlsplit(url), SimpleQueue[bytes]()
        client: Any = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.on_connect = lambda *_: client.subscribe("$SYS/broker/version")
        client.on_message = lambda _, __, message: said.put(message.payload)
        client.connect(parts.hostname or "127.0.0.1", parts.port or 1883)
        client.loop_start()
        try:
            return said.get(timeout=5).decode().replace("mosquitto version", "Mosquitto")
        finally:
            client.disconnect()
            client.loop_stop()

    def _program(self) -> str:
        return packages.program("mosquitto", package="mosquitto")
