"""Connections that are made when they are needed, and have others wait for the answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from ..errors import DestinationUnavailable, NotAttempted
from .calls import Call


class Session(Protocol):
    @property
    def lost(self) -> str | None: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=Session)


class Sessions(Generic[S]):
    """One at a time. It belongs to one event loop, and is made anew on another, or when it is lost.

    To open one may take longer than a call has time. So it goes on when the call is over: the next one finds it open,
    or waits for it.
    """

    def __init__(self, open: Callable[[], Awaitable[S]]) -> None:
        self._open = open
        self._session: S | None = None
        self._opening: asyncio.Task[S] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def take(self) -> S:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._session, self._opening = loop, None, None
        if self._session is not None and self._session.lost is None:
            return self._session
        if self._opening is None:
            self._opening = loop.create_task(self._make())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _make(self) -> S:
        self._session = await self._open()
        return self._session

    def _opened(self, opening: asyncio.Task[S]) -> None:
        if self._opening is opening:
            self._opening = None
        if not opening.cancelled():
            opening.exception()  # those who wait for it have it; maybe nobody does any more

    async def close(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            self._session = self._opening = None
            return
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class Waiting(ABC):
    """The part of a session that has those wait who sent something."""

    lost: str | None = None
    """Why nothing can be sent any more."""
    _is_given_up = False
    """Lost by our own doing, which says nothing about the broker."""
    _heard_at = -inf
    """When the broker last answered."""
    _news: asyncio.Event
    """That something was answered, or that it is lost."""

    @abstractmethod
    def abort(self, why: str) -> None:
        """Nothing more may leave."""

    @abstractmethod
    def _forget(self, call: Call) -> None:
        """Answer nothing to it any more."""

    @abstractmethod
    def _has_unsent(self) -> bool: ...

    def give_up(self, call: Call, since: float, patience: float) -> None:
        """Nobody waits for it any more, and what was not sent yet must not be. Other calls go on, unless nothing was
        answered to anybody for so long that the connection may be dead, though nobody has closed it."""
        self._forget(call)
        if self.lost is not None:
            return
        if asyncio.get_running_loop().time() - max(since, self._heard_at) >= patience:
            self.abort("there was no answer for too long")
        elif self._has_unsent():
            self._is_given_up = True
            self.abort("another call, which was not sent to its end, was given up")

    async def wait_for_answers(self, call: Call) -> None:
        while call.is_open:
            self._check()
            await self._hear()

    async def _hear(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _note_answer(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._news.set()

    def _check(self) -> None:
        if self.lost is not None:
            raise NotAttempted(self.lost) if self._is_given_up else DestinationUnavailable(self.lost)


def has_unsent(transport: asyncio.WriteTransport) -> bool:
    """Whether any of what was written is still here. TLS hands it on to a transport beneath, maybe out of sight."""
    if transport.get_write_buffer_size():
        return True
    if transport.get_extra_info("ssl_object") is None:
        return False
    beneath: Any = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return beneath is None or beneath.get_write_buffer_size() > 0
