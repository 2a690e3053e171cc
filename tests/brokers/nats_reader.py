"""NATS as a consumer sees it, spoken over a plain socket: what a stream has, and requests to JetStream."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATIENCE = 30.0


class Stored(NamedTuple):
    subject: str
    headers: dict[str, str]
    payload: bytes


class NatsReader:
    """One subscription for answers, one for messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._stored: list[Stored] = []

    async def greet(self, user: str | None, password: str | None) -> None:
        login = {} if user is None else {"user": user, "pass": password}
        about = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "tests", **login}
        assert (await self._reader.readline()).startswith(b"INFO ")
        self._write(f"CONNECT {json.dumps(about)}")
        self._write(f"SUB {self._inbox}.answer 1")
        self._write(f"SUB {self._inbox}.stored 2")

    async def ask(self, subject: str, question: object = None) -> dict[str, Any]:
        """JetStream's answer; an error is one of ours."""
        body = b"" if question is None else json.dumps(question).encode()
        self._write(f"PUB {subject} {self._inbox}.answer {len(body)}\r\n{body.decode()}")
        while True:
            if (answer := await self._frame()) is not None:
                assert "error" not in answer, answer
                return answer

    async def messages(self, stream: str) -> list[Stored]:
        """All that the stream has now, oldest first."""
        self._stored = []
        config = {"deliver_subject": f"{self._inbox}.stored", "ack_policy": "none", "deliver_policy": "all"}
        made = await self.ask(f"$JS.API.CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        while len(self._stored) < made["num_pending"]:
            await self._frame()
        await self.ask(f"$JS.API.CONSUMER.DELETE.{stream}.{made['name']}")
        return self._stored[: made["num_pending"]]

    async def _frame(self) -> dict[str, Any] | None:
        """The next thing said: an answer, or None after anything else."""
        words = (await self._reader.readline()).split()
        assert words, "NATS hung up"
        assert words[0] != b"-ERR", words
        if words[0] == b"PING":
            self._write("PONG")
        if words[0] not in (b"MSG", b"HMSG"):
            return None
        whole = await self._reader.readexactly(int(words[-1]) + 2)
        size = int(words[-2]) if words[0] == b"HMSG" else 0
        block, payload = whole[:size], whole[size:-2]
        if words[2] == b"2":
            self._stored.append(Stored(words[1].decode(), _headers(block), payload))
            return None
        assert payload, f"nobody answered: {block!r}"
        return json.loads(payload)

    def _write(self, line: str) -> None:
        self._writer.write(f"{line}\r\n".encode())


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode().split("\r\n")[1:]
    return {name: value.removeprefix(" ") for name, _, value in (line.partition(":") for line in lines if line)}


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[NatsReader]:
    parts = urlsplit(url)
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            made = NatsReader(reader, writer)
            await made.greet(parts.username, parts.password)
            yield made
        finally:
            writer.transport.abort()


async def make_stream(url: str, name: str, **config: object) -> None:
    async with reading(url) as reader:
        settings = {"name": name, "subjects": [name], "storage": "file", "retention": "limits", **config}
        await reader.ask(f"$JS.API.STREAM.CREATE.{name}", settings)


async def change_stream(url: str, name: str, **config: object) -> None:
    async with reading(url) as reader:
        found = await reader.ask(f"$JS.API.STREAM.INFO.{name}")
        await reader.ask(f"$JS.API.STREAM.UPDATE.{name}", {**found["config"], **config})


async def stored(url: str, stream: str) -> list[Stored]:
    async with reading(url) as reader:
        return await reader.messages(stream)
