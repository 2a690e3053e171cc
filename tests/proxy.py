"""A network that fails: it stands between a relay and a server, and cuts, stalls, or swallows answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sqlalchemy import make_url

Condition = Callable[[bytes, bytes], bool]
"""Of all that a client said on a connection, and of its latest words."""


class Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.moving = asyncio.Event()
        self.moving.set()
        self.is_deaf = False
        """What the server answers is swallowed."""
        self.said = b""
        """By the client, the latest part."""

    def cut(self) -> None:
        self.moving.set()  # so that whoever waits for that sees the end
        for writer in (self.client, self.server):
            writer.transport.abort()


class Proxy:
    """Runs in a thread of its own within the block; its methods may be called from any thread."""

    def __init__(self, url: str, port: int = 0) -> None:
        self._target = make_url(url)
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._stopped = asyncio.Event()
        self._port = port
        self._swallow: Condition | None = None
        self._is_shut = False
        self._is_frozen = False
        self.swallowed = threading.Event()
        """The answer to what was asked is lost."""

    @property
    def url(self) -> str:
        return self._target.set(host="127.0.0.1", port=self._port).render_as_string(hide_password=False)

    @property
    def is_in_use(self) -> bool:
        return bool(self._links)

    # --- faults

    def cut(self) -> None:
        """Every connection there is, without a goodbye."""
        self._call(lambda: [link.cut() for link in list(self._links)])

    def stall(self) -> None:
        """Every connection there is stays open, and nothing moves through it any more; new ones are fine."""
        self._call(lambda: [link.moving.clear() for link in list(self._links)])

    def resume(self) -> None:
        """What was stalled goes on, with all that had been said."""
        self._call(lambda: [link.moving.set() for link in list(self._links)])

    def shut(self) -> None:
        """Every connection is cut, and no new one gets through."""
        self._is_shut = True
        self.cut()

    def freeze(self) -> None:
        """Nothing moves any more, through new connections neither."""
        self._is_frozen = True
        self.stall()

    def thaw(self) -> None:
        """Whatever was frozen goes on, with all that had been said."""
        self._is_frozen = False
        self.resume()

    def swallow_answers(self, when: Condition) -> None:
        """Of each connection, from the moment when the client has said something that fulfils the condition. What it
        says still reaches the server."""
        self._swallow = when

    def swallow_answer(self, when: Condition) -> None:
        """As above, but of the first such connection only."""
        self.swallow_answers(lambda said, data: not self.swallowed.is_set() and when(said, data))

    def heal(self) -> None:
        """New connections are fine again; those that are broken are cut."""
        self._swallow, self._is_shut, self._is_frozen = None, False, False
        self._call(lambda: [link.cut() for link in list(self._links) if link.is_deaf or not link.moving.is_set()])

    # --- forwarding

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target.host is not None
        assert self._target.port is not None
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_shut:
            writer.transport.abort()
            return
        try:
            await self._welcome(reader, writer)
            answers, server = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, server)
        if self._is_frozen:
            link.moving.clear()
        self._links.add(link)
        try:
            await asyncio.gather(self._ask(reader, link), self._answer(answers, link))
        except OSError:
            pass
        finally:
            self._links.discard(link)
            link.cut()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What comes before anything is forwarded."""

    async def _ask(self, reader: asyncio.StreamReader, link: Link) -> None:
        while data := await reader.read(65536):
            await link.moving.wait()
            link.said = (link.said + data)[-100_000:]
            if self._swallow and self._swallow(link.said, data):
                link.is_deaf = True
                self.swallowed.set()
            link.server.write(data)
            await link.server.drain()
        link.cut()

    async def _answer(self, answers: asyncio.StreamReader, link: Link) -> None:
        while data := await answers.read(65536):
            await link.moving.wait()
            if not link.is_deaf:
                link.client.write(data)
                await link.client.drain()
        link.cut()

    # --- its thread

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopped.wait()
        server.close()
        for link in list(self._links):
            link.cut()
        await asyncio.gather(*self._tasks)

    def _call(self, function: Callable[[], object]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        done.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._stopped.set)
        self._thread.join()
        self._loop.close()
