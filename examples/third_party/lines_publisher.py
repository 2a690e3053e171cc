"""A publisher in a package of its own: each message is a line of JSON over TCP, confirmed by a line.

`lines://host:port` names it, once the package is installed: see pyproject.toml beside this file.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Hashable
from urllib.parse import urlsplit

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected, NotAttempted
from postroom.ports import Batch, Features


class LinesPublisher:
    """One connection per call, and one message at a time on it: whatever goes wrong, it is known which did not arrive,
    and nothing can leave when the call is over."""

    features = Features(ordered=True)

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "lines" or not parts.hostname or not parts.port:
            raise ConfigurationError(f"{url!r} names no line server; write 'lines://localhost:7000'")
        self._address = (parts.hostname, parts.port)

    async def publish(self, batch: Batch) -> None:
        if not batch.messages:
            return
        try:
            reader, writer = await asyncio.open_connection(*self._address)
        except OSError as error:
            raise DestinationUnavailable(f"nobody listens at {self._address}: {error}") from error
        try:
            await send_in_order(batch, reader, writer)
        except OSError as error:
            raise DestinationUnavailable(f"the connection to {self._address} broke: {error}") from error
        finally:
            writer.transport.abort()  # not `close`, which would still send what is buffered

    async def close(self) -> None:
        """Nothing is kept between calls."""


async def send_in_order(batch: Batch, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Behind a message that failed, the rest of its key stays where it is: that is what `ordered` promises."""
    stopped: set[Hashable] = set()
    for message in batch.messages:
        lane = message.id if message.key is None else (message.topic, message.key)
        if lane in stopped or not batch.may_start():
            error: Exception | None = NotAttempted("one before it failed, or there is no time left")
        else:
            error = await send(message, reader, writer)
        if error is not None:
            stopped.add(lane)
        batch.answer(message, error)


async def send(message: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exception | None:
    """None once it is confirmed; the server's refusal if it does not want this one."""
    line = {
        "topic": message.topic,
        "key": message.key,
        "headers": message.wire_headers(),
        "payload": b64encode(message.payload).decode(),
    }
    writer.write(json.dumps(line).encode() + b"\n")
    await writer.drain()
    answer = await reader.readline()
    if not answer.endswith(b"\n"):
        raise ConnectionResetError("the server hung up before it answered")
    refusal = json.loads(answer)["refusal"]
    return None if refusal is None else MessageRejected(refusal)
