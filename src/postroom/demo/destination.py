"""Where the messages go: a server of its own on the loopback interface, one JSON line in, one JSON line back.

`python -m postroom.demo.destination RECORD SEED`. Everything it accepted or refused is in RECORD, in that order, before
it answers. Told `down` it stops listening and breaks its connections; told `up` it is back on the same port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import IO, Any

from .child import obey, report
from .plan import Refusal, draw

HOST = "127.0.0.1"
PAUSE = (0.004, 0.012)
"""Seconds that a message takes: as long as a mail server or a web hook nearby."""


class Destination:
    def __init__(self, record: IO[str], refusals: Mapping[tuple[str, str], Refusal], random: Random) -> None:
        self._record = record
        self._refusals = refusals
        self._refused: Counter[tuple[str, str]] = Counter()
        self._random = random
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._socket = _bound(0)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    async def up(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=self._socket)

    async def down(self) -> None:
        if self._server is None:
            return
        port = self.port
        self._server.close()
        self._server = None
        for connection in self._connections:
            connection.transport.abort()
        # Bound but not listening: connections are refused, and nobody else gets the port meanwhile.
        self._socket = _bound(port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while line := await reader.readline():
                await asyncio.sleep(self._random.uniform(*PAUSE))
                if writer.is_closing():
                    break
                answer = self._judge(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the relay died, or we go down
        finally:
            self._connections.discard(writer)
            writer.close()

    def _judge(self, message: dict[str, Any]) -> dict[str, Any]:
        subject = (message["type"], message["payload"]["order"])
        refusal = self._refusals.get(subject)
        if refusal is None or (refusal.times is not None and self._refused[subject] >= refusal.times):
            self._note("accepted", message)
            return {"outcome": "accepted"}
        self._refused[subject] += 1
        self._note("refused", message)
        return {"outcome": "refused", "reason": refusal.reason, "permanent": refusal.permanent}

    def _note(self, outcome: str, message: dict[str, Any]) -> None:
        copied = {name: message[name] for name in ("relay", "id", "topic", "key", "type")}
        noted = {"outcome": outcome, "at": round(time.time(), 3), **copied}
        self._record.write(json.dumps(noted) + "\n")
        self._record.flush()


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


async def main(record: Path, seed: int) -> None:
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[str] = asyncio.Queue()
    tell = partial(loop.call_soon_threadsafe, orders.put_nowait)
    with record.open("a", encoding="utf-8") as file:
        destination = Destination(file, draw(seed).refusals, Random(seed))
        await destination.up()
        obey(tell, partial(tell, "end"))
        report("ready", port=destination.port)
        while (order := await orders.get()) != "end":
            await (destination.down() if order == "down" else destination.up())
            report(order)
        await destination.down()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
