"""Connections past SQLAlchemy, for the hot path: one statement there and back, and a transaction by itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any


class Drivers:
    """As many connections as were ever needed at once; those that are not in use wait to be used again."""

    def __init__(
        self, connect: Callable[[], Awaitable[Any]], end: Callable[[Any], None], is_closed: Callable[[Any], bool]
    ) -> None:
        self._connect = connect
        self._end = end
        self._is_closed = is_closed
        self._all: list[Any] = []
        """The oldest first."""
        self._spare: set[Any] = set()
        self._is_open = True

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[Any]:
        """One on which something failed is not used again: what state it is in is anybody's guess. If it was cut, the
        others probably were, too."""
        connection = self._take() or await self._make()
        try:
            yield connection
        except BaseException:
            if self._is_closed(connection):
                self._drop_spare()
            self._drop(connection)
            raise
        if self._is_open:
            self._spare.add(connection)
        else:
            self._drop(connection)

    def _take(self) -> Any | None:
        """The oldest of those that are not in use: it has prepared most statements."""
        for connection in [each for each in self._all if each in self._spare]:
            self._spare.remove(connection)
            if not self._is_closed(connection):
                return connection
            self._drop(connection)
        return None

    def open(self) -> list[Any]:
        """All that are not closed, used or not."""
        return [connection for connection in self._all if not self._is_closed(connection)]

    def close(self) -> None:
        self._is_open = False
        self._drop_spare()

    def _drop_spare(self) -> None:
        while self._spare:
            self._drop(self._spare.pop())

    async def _make(self) -> Any:
        connection = await self._connect()
        self._all.append(connection)
        return connection

    def _drop(self, connection: Any) -> None:
        self._all.remove(connection)
        self._end(connection)
