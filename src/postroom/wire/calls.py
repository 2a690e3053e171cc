"""Messages that were sent, and wait for a broker to confirm them one by one."""

from __future__ import annotations

import asyncio

from ..message import Message
from .lanes import Lanes


class Call:
    """Those of one `publish`."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._open = 0
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything that was sent has no answer yet."""
        return self._open > 0

    def sent(self) -> None:
        self._open += 1

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        self._open -= 1
        self._lanes.answer(message, error)
        if self._open == 0 and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def end(self) -> None:
        """Wait for the answers to all that was sent."""
        if self._open:
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended
