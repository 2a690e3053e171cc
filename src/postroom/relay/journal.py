"""What is under way in this process, written down before it starts: if the process dies of it, the next owner knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import StoreError
from ..message import Message
from ..ports import Lease, Store

MOST_SUSPECTS = 200
"""Of a slot. There may be some among them that are long delivered."""

Counts = dict[str, int]
"""By the ids of messages: how often each was under way when the owner of its slot was lost."""


class Journal:
    """A note with the lease of each slot in which something is under way, or was when its owner was lost.

    Whoever takes a slot whose owner did not give it back takes all that was under way there for suspect: one of them
    may have ended the process. What comes to an end is not suspect any more.
    """

    def __init__(self, store: Store, relay: str, epochs: Callable[[], Mapping[int, int]]) -> None:
        self._store = store
        self._relay = relay
        self._epochs = epochs
        self._running: dict[int, Counts] = {}
        self._suspects: dict[int, Counts] = {}
        self._changed: set[int] = set()
        """Slots whose notes are not as they should be."""
        self._ended: dict[int, set[str]] = {}
        """What has come to an end since the notes were written."""
        self._turn = asyncio.Lock()
        self._waiting: dict[asyncio.Future[bool], int] = {}
        self._writer: asyncio.Task[None] | None = None

    def own(self, lease: Lease) -> None:
        """A slot is ours from now on, with what its last owner left."""
        running, suspects = _read(lease.notes)
        for id in self._ended.pop(lease.slot, ()):  # here, when there was no way to write it down
            running.pop(id, None)
        suspects |= {id: crashes + 1 for id, crashes in running.items()}
        self._running.pop(lease.slot, None)
        self._suspects[lease.slot] = dict(list(suspects.items())[-MOST_SUSPECTS:])
        self._changed.discard(lease.slot)

    def crashes(self, message: Message) -> int:
        return self._suspects.get(message.slot, {}).get(message.dedupe_id, 0)

    async def start(self, message: Message) -> bool:
        """Write down that it is about to start; those that start together are written together."""
        slot, loop = message.slot, asyncio.get_running_loop()
        self._running.setdefault(slot, {})[message.dedupe_id] = self.crashes(message)
        self._changed.add(slot)
        written: asyncio.Future[bool] = loop.create_future()
        self._waiting[written] = slot
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._write_waiting())
        try:
            return await written
        finally:
            self._waiting.pop(written, None)

    def end(self, message: Message, *, was_tried: bool) -> None:
        """It came to an end, be it a good one or not. Written down with whatever starts after it, so that what that
        one does is not laid at this one's door; or when there is time."""
        slot, id = message.slot, message.dedupe_id
        was_running = self._running.get(slot, {}).pop(id, None) is not None
        if was_running:
            self._ended.setdefault(slot, set()).add(id)
        was_suspect = was_tried and self._suspects.get(slot, {}).pop(id, None) is not None
        if was_running or was_suspect:
            self._changed.add(slot)

    async def catch_up(self) -> None:
        """Write down what has come to an end."""
        if self._changed:
            await self._write(self._changed)

    async def close(self) -> None:
        """What is still under way is left behind on purpose, and is no suspect."""
        for slot in [slot for slot, running in self._running.items() if running]:
            self._running[slot].clear()
            self._changed.add(slot)
        await self.catch_up()

    async def _write_waiting(self) -> None:
        while waiting := {written: slot for written, slot in self._waiting.items() if not written.done()}:
            try:
                refused = await self._write({*waiting.values(), *self._changed})
            except StoreError as error:
                for written in waiting:
                    if not written.done():
                        written.set_exception(error)
            else:
                for written, slot in waiting.items():
                    if not written.done():
                        written.set_result(slot not in refused)

    async def _write(self, slots: Iterable[int]) -> frozenset[int]:
        """One at a time: what is written last must be what is true last."""
        async with self._turn:
            return await self._write_now(set(slots))

    async def _write_now(self, slots: set[int]) -> frozenset[int]:
        epochs = self._epochs()
        ours = {slot: self._notes(slot) for slot in slots if slot in epochs}
        lost = frozenset(slot for slot in slots if slot not in epochs)
        self._changed.difference_update(slots)
        ended = {slot: self._ended.pop(slot) for slot in ours if slot in self._ended}
        try:
            return lost | await self._store.write_notes(self._relay, epochs, ours) if ours else lost
        except BaseException:
            self._changed.update(ours)
            for slot, ids in ended.items():
                self._ended.setdefault(slot, set()).update(ids)
            raise

    def _notes(self, slot: int) -> str | None:
        running, suspects = self._running.get(slot, {}), self._suspects.get(slot, {})
        waiting = {id: crashes for id, crashes in suspects.items() if id not in running}
        if not running and not waiting:
            return None
        return json.dumps({"running": running, "suspects": waiting}, separators=(",", ":"))


def _read(notes: str | None) -> tuple[Counts, Counts]:
    """Notes that cannot be read are none: they are no reason to deliver nothing."""
    try:
        found: Any = json.loads(notes or "{}")
        running, suspects = (
            {str(id): int(crashes) for id, crashes in found.get(name, {}).items()} for name in ("running", "suspects")
        )
    except (ValueError, TypeError, AttributeError):
        return {}, {}
    return running, suspects
