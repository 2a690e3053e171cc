"""Web hooks for tests: servers in threads of their own that remember what they are told.

`HttpServer` speaks HTTP/1.1 and can do anything a bad server does. `SecureServer` is hypercorn, with TLS and HTTP/2.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Self, cast

from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework

from tests.services.places import CERTIFICATES

OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes
    version: str = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int = OK
    headers: Mapping[str, str] | None = None
    body: bytes = b""

    def spelled(self) -> bytes:
        headers = {"content-length": str(len(self.body)), **(self.headers or {})}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class Silence:
    """No answer at all; the connection stays."""


class HangUp:
    """The connection is closed without an answer."""


class Drip:
    """The head of an answer, one letter after the other, and never its end."""

    def __init__(self) -> None:
        self.letters = (letter.encode() for letter in chain("HTTP/1.1 200 OK\r\nx: ", repeat("x")))


Reaction = Answer | Silence | HangUp | Drip | bytes
"""Bytes are sent as they are."""


class Loop(ABC):
    """A server within an event loop that has a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end = asyncio.Event()

    @abstractmethod
    async def run(self, ready: threading.Event, end: asyncio.Event) -> None: ...

    def begin(self) -> None:
        ready = threading.Event()
        self._end = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, args=(self._loop, ready))
        self._thread.start()
        assert ready.wait(10)

    def finish(self) -> None:
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
            self._thread = self._loop = None

    def _live(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self.run(ready, self._end))


class HttpServer(Loop):
    """Its memory outlives a crash. `react` says what to answer; it may be changed at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        """Those that were answered with 2xx, in the order of their arrival."""
        self.refused: list[Request] = []
        """The others."""
        self.connections = 0
        """So many were made."""
        self.react: Callable[[Request], Reaction] = lambda _: Answer()
        self.pause = 0.0
        """Seconds before each answer."""
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> str:
        self.begin()
        return self.address

    def crash(self) -> None:
        """Without a goodbye."""
        self.finish()

    def start_again(self) -> None:
        """On the same port."""
        self.begin()

    def stop(self) -> None:
        self.finish()

    def hang_up(self) -> None:
        """Every connection there is."""
        self._call(self._abort)

    def say(self, data: bytes) -> None:
        """On every connection there is, asked or not."""
        self._call(lambda: [writer.write(data) for writer in self._writers])

    def _call(self, function: Callable[[], object]) -> None:
        assert self._loop is not None
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)

    async def run(self, ready: threading.Event, end: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await end.wait()
        server.close()
        self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """No coroutine: whoever was let in is known at once, also if this is about to end."""
        if self._end.is_set():
            writer.transport.abort()
            return
        self._writers.add(writer)
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader):
                await asyncio.sleep(self.pause)
                reaction = self.react(request)
                self._answer(writer, reaction, request)
                if isinstance(reaction, HangUp):
                    break
                if isinstance(reaction, Silence):
                    await asyncio.Event().wait()
                while isinstance(reaction, Drip):
                    writer.write(next(reaction.letters))
                    await writer.drain()
                    await asyncio.sleep(0.05)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _answer(self, writer: asyncio.StreamWriter, reaction: Reaction, request: Request) -> None:
        is_taken = isinstance(reaction, Answer) and 200 <= reaction.status < 300
        (self.requests if is_taken else self.refused).append(request)
        if isinstance(reaction, Answer):
            writer.write(reaction.spelled())
        elif isinstance(reaction, bytes):
            writer.write(reaction)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


async def _read(reader: asyncio.StreamReader) -> Request:
    if not (beginning := await reader.readexactly(1)).isalpha():
        raise ConnectionError("that is not HTTP")
    head = (beginning + await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method=method, target=target, headers=headers, body=body)


class SecureServer(Loop):
    """It takes everything; but while it is held, it answers to nothing. After `most` requests it ends a connection."""

    def __init__(self, most: int = 1_000) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.held = threading.Event()
        self.waiting = 0
        """Requests that are held."""
        self._most = most
        self.port = 0

    async def run(self, ready: threading.Event, end: asyncio.Event) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        config = Config()
        config.bind = [f"fd://{listening.detach()}"]
        config.certfile = config.keyfile = str(CERTIFICATES / "server.pem")
        config.keep_alive_max_requests = self._most
        config.graceful_timeout = config.shutdown_timeout = 0.1
        config.errorlog = logging.getLogger("tests.hypercorn")

        async def app(
            scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
        ) -> None:
            if scope["type"] == "http":
                await self._answer(scope, receive, send)

        ready.set()
        await serve(cast(ASGIFramework, app), config, shutdown_trigger=end.wait)

    async def _answer(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                return
            body, more = body + event["body"], event["more_body"]
        query = scope["query_string"].decode()
        target = scope["raw_path"].decode() + (f"?{query}" if query else "")
        headers = {name.decode(): value.decode("ascii") for name, value in scope["headers"]}
        if self.held.is_set():
            self.waiting += 1
            await receive()  # until it hears that the other side has gone
            self.waiting -= 1
            return
        self.requests.append(
            Request(method=scope["method"], target=target, headers=headers, body=body, version=scope["http_version"])
        )
        await send({"type": "http.response.start", "status": OK, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
        gc.collect()  # what it warns of shall be said now
