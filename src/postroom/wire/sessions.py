"""Connections that are made when they are needed, and have others wait for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from ..errors import DestinationUnavailable
from .calls import Call


class Session(Protocol):
    @property
    def lost(self) -> str | None: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=Session)


class Sessions(Generic[S]):
    """One at a time. It belongs to one event loop, and is made anew on another, or when it is lost."""

    def __init__(self, open: Callable[[], Awaitable[S]]) -> None:
        self._open = open
        self._session: S | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    async def take(self) -> S:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._turn, self._session = loop, asyncio.Lock(), None
        if self._session is None or self._session.lost is not None:
            async with self._turn:
                if self._session is None or self._session.lost is not None:
                    self._session = await self._open()
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()


class Waiting:
    """The part of a session that has those wait who sent something."""

    lost: str | None = None
    """Why nothing can be sent any more."""
    _news: asyncio.Event
    """That something was answered, or that it is lost."""

    async def wait_for_answers(self, call: Call) -> None:
        while call.is_open:
            self._check()
            await self._hear()

    async def _hear(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _check(self) -> None:
        if self.lost is not None:
            raise DestinationUnavailable(self.lost)
