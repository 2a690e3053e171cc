"""A relay process: it delivers what the shop committed to the destination.

`python -m postroom.demo.relay URL PORT NAME`. It stops, gently, when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from functools import partial
from typing import Any

from .. import events
from ..errors import MessageRejected
from ..message import Message
from ..relay import Relay
from ..retry import Steps
from .child import obey, report
from .destination import HOST
from .plan import CONTINUED_TOPICS

LEASE_SECONDS = 2.0
AT_THE_SAME_TIME = 8

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Courier:
    """Takes one message to the destination and waits for the answer. It keeps connections that work."""

    name = "destination"

    def __init__(self, port: int, relay: str) -> None:
        self._port = port
        self._relay = relay
        self._idle: list[Connection] = []

    async def __call__(self, message: Message) -> None:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(self._line(message))
            answer = await reader.readline()
        except BaseException:  # cancelled too: an answer may still come, and would be taken for the next one's
            writer.close()
            raise
        if not answer.endswith(b"\n"):
            writer.close()
            raise ConnectionResetError("the destination hung up")
        self._idle.append((reader, writer))
        _raise_if_refused(json.loads(answer))

    def _line(self, message: Message) -> bytes:
        line = {
            "relay": self._relay,
            "id": message.id,
            "topic": message.topic,
            "key": message.key,
            "type": message.type,
            "payload": json.loads(message.payload),
        }
        return json.dumps(line).encode() + b"\n"


def _raise_if_refused(answer: dict[str, Any]) -> None:
    if answer["outcome"] == "refused":
        raise MessageRejected(answer["reason"], permanent=answer["permanent"])


class Reporter:
    """Tells the parent what the audience may like to hear."""

    def notice(self, event: events.Event) -> None:
        match event:
            case events.BreakerOpened():
                report("breaker opened")
            case events.BreakerClosed():
                report("breaker closed")
            case events.LeasesTaken():
                report("leases taken", count=len(event.slots))
            case events.Retried():
                report("retried")
            case events.Died():
                report("died")
            case _:
                pass


async def main(url: str, port: int, name: str) -> None:
    relay = Relay(
        url,
        Courier(port, name),
        observers=[Reporter()],
        lease_ttl=LEASE_SECONDS,
        concurrency=AT_THE_SAME_TIME,
        poll_interval="50ms",
        retry=Steps("100ms", "200ms", "400ms"),
        on_dead=dict.fromkeys(CONTINUED_TOPICS, "continue"),
        breaker_initial="100ms",
        breaker_cap="500ms",
        retention="1d",
    )
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    async with relay:
        obey(lambda line: None, partial(loop.call_soon_threadsafe, over.set))
        report("ready")
        await over.wait()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
