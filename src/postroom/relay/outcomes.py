"""What became of messages lately, for those who wait for one: an observer among others."""

from __future__ import annotations

import asyncio
from collections import deque

from .. import events
from ..errors import RelayError
from ..ports import Store

REMEMBERED = 20_000
"""Outcomes remembered for those who ask after the fact."""


class Outcomes:
    def __init__(self, store: Store, look_interval: float) -> None:
        self._store = store
        self._look_interval = look_interval
        self._waiting: dict[str, set[asyncio.Future[bool]]] = {}
        self._recent: deque[tuple[bool | None, list[str]]] = deque()
        self._remembered = 0

    def notice(self, event: events.Event) -> None:
        if isinstance(event, events.Delivered):
            self._remember(True, [message.id for message in event.messages])
        elif isinstance(event, events.Died):
            self._remember(False, [event.message.id])
        elif isinstance(event, events.Refunded):
            self._remember(None, [event.message.id])

    async def wait_for(self, id: str) -> bool:
        """True once the message is delivered, False if it is dead or discarded. Another relay may be the one that
        delivers it, so the store is asked every now and then."""
        seen = False
        while True:
            outcome = self._recall(id)
            if outcome is None:
                outcome = await self._wait_a_while(id)
            if outcome is not None:
                return outcome
            entry = await self._store.entry(id)
            if entry is None and seen:
                return True
            if entry is not None and entry.state in ("dead", "discarded", "delivered", "superseded"):
                return entry.state in ("delivered", "superseded")
            seen = seen or entry is not None

    def close(self) -> None:
        """Nobody will hear any more."""
        for future in [future for futures in self._waiting.values() for future in futures]:
            if not future.done():
                future.set_exception(RelayError("the relay has stopped, or begun anew: wait for the message again"))

    async def _wait_a_while(self, id: str) -> bool | None:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, set()).add(future)
        try:
            async with asyncio.timeout(self._look_interval):
                return await future
        except TimeoutError:
            return None
        finally:
            if id in self._waiting:
                self._waiting[id].discard(future)
                if not self._waiting[id]:
                    del self._waiting[id]

    def _remember(self, delivered: bool | None, ids: list[str]) -> None:
        self._recent.append((delivered, ids))
        self._remembered += len(ids)
        while self._remembered > REMEMBERED:
            self._remembered -= len(self._recent.popleft()[1])
        for id in self._waiting.keys() & set(ids) if self._waiting and delivered is not None else ():
            for future in self._waiting.pop(id):
                if not future.done():
                    future.set_result(bool(delivered))

    def _recall(self, id: str) -> bool | None:
        """The latest outcome, if it is among the last ones; None for a death that was taken back."""
        return next((delivered for delivered, ids in reversed(self._recent) if id in ids), None)
