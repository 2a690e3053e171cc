"""Connections past SQLAlchemy, for the hot path: one statement there and back, and a transaction by itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any


class Drivers:
    """As many connections as were ever needed at once; those that are not in use wait to be used again."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], end: Callable[[Any], None]) -> None:
        self._connect = connect
        self._end = end
        self._spare: list[Any] = []
        self._is_open = True
        self.all: set[Any] = set()

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[Any]:
        """One on which something failed is not used again: what state it is in is anybody's guess."""
        connection = self._spare.pop() if self._spare else await self._make()
        try:
            yield connection
        except BaseException:
            self._drop(connection)
            raise
        if self._is_open:
            self._spare.append(connection)
        else:
            self._drop(connection)

    def close(self) -> None:
        self._is_open = False
        while self._spare:
            self._drop(self._spare.pop())

    async def _make(self) -> Any:
        connection = await self._connect()
        self.all.add(connection)
        return connection

    def _drop(self, connection: Any) -> None:
        self.all.discard(connection)
        self._end(connection)
