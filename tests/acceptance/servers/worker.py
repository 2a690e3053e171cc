"""What a relay process does. Nothing of Postroom is imported before it has its orders: its clock may have to be wrong.

All workers write what they publish to one file, a line for each message. Lines are appended whole, so their order is
the order in which messages left the relays.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from postroom import Message
    from postroom.ports import Batch


MIDDLES = {
    "while it takes leases": ("postroom_leases", "FOR UPDATE"),
    "while it sets the doorbell": ("pg_advisory_xact_lock",),
}
"""Moments in the middle of a transaction, and words of the statement after which they come."""


IMPORTS = [
    "postroom",
    "postroom.stores.postgresql",
    "postroom.stores.mysql",
    "postroom.testing.faults",
    "asyncpg",
    "asyncmy",
]


@dataclass(frozen=True, kw_only=True)
class Orders:
    url: str
    log: str
    settings: dict[str, Any] = field(default_factory=dict)
    clock_is_wrong_by: float = 0.0
    """Seconds."""
    freeze_at: str | None = None
    """A moment of `postroom.testing.faults`, or "between messages": the process stops itself there, as SIGSTOP does,
    after it has published a few messages. Or one of `MIDDLES`."""
    refuse_when_thawed: str | None = None
    """The process freezes when it is about to publish this key, and refuses the message afterwards."""
    pace: float = 0.0
    """Seconds that each message takes."""


class Record(NamedTuple):
    """A message that left a relay."""

    pid: int
    slot: int
    epoch: int
    key: str
    version: int
    id: str
    wall_clock: float


FREEZE_AFTER = 20
"""Messages: by then the relay is in the middle of its work."""


class Freezer:
    """Stops the process at the chosen moment, once, as SIGSTOP does."""

    def __init__(self, moment: str | None) -> None:
        self.count = 0
        """Of messages published."""
        self._moment = moment
        self._open_transactions = 0
        self._watch_transactions()

    def pass_by(self, moment: str) -> None:
        """Not in the middle of a transaction, which would keep others waiting for its locks: that is a moment of its
        own."""
        if moment == self._moment and self.count >= FREEZE_AFTER and self.may_freeze():
            self.freeze()

    def draw(self, call: str) -> None:
        """Nothing else happens."""

    def may_freeze(self) -> bool:
        return not self._open_transactions

    def freeze(self) -> None:
        self._moment = None
        os.kill(os.getpid(), signal.SIGSTOP)

    def _watch_transactions(self) -> None:
        from sqlalchemy import Engine, event

        @event.listens_for(Engine, "begin")
        def began(connection: Any) -> None:
            self._open_transactions += 1

        @event.listens_for(Engine, "commit")
        @event.listens_for(Engine, "rollback")
        def ended(connection: Any) -> None:
            self._open_transactions -= 1

        @event.listens_for(Engine, "after_cursor_execute")
        def executed(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if self._moment in MIDDLES and all(word in statement for word in MIDDLES[self._moment]):
                self.freeze()


class Recorder:
    """A destination that asks before each message whether it may still go, as publishers must."""

    def __init__(self, orders: Orders, freezer: Freezer) -> None:
        from postroom.ports import Features

        self.features = Features(ordered=True)
        self._orders = orders
        self._freezer = freezer
        self._file = os.open(orders.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def publish(self, batch: Batch) -> None:
        from postroom import MessageRejected, NotAttempted

        self._freezer.pass_by("before publish")
        for message in batch.messages:
            is_bad = message.key is not None and message.key == self._orders.refuse_when_thawed
            if not batch.may_start() or (is_bad and not self._freezer.may_freeze()):
                batch.answer(message, NotAttempted("this was no time to start"))
                continue
            if is_bad:
                self._freezer.freeze()
                batch.answer(message, MessageRejected("the relay slept over it"))
                continue
            os.write(self._file, self._line(message))
            self._freezer.count += 1
            batch.answer(message)
            self._freezer.pass_by("between messages")
            await asyncio.sleep(self._orders.pace)

    def _line(self, message: Message) -> bytes:
        version = json.loads(message.payload)["version"]
        record = Record(os.getpid(), message.slot, message.epoch, message.key or "", version, message.id, time.time())
        return json.dumps(record).encode() + b"\n"

    async def close(self) -> None:
        os.close(self._file)


def main(orders: Orders, errors: str) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    if orders.clock_is_wrong_by:
        from tests.acceptance.servers.wrong_clock import set_clock_wrong

        set_clock_wrong(orders.clock_is_wrong_by)
    asyncio.run(run(orders))


async def run(orders: Orders) -> None:
    from postroom import Outbox, Relay
    from postroom.relay.wiring import store_for
    from postroom.testing.faults import FaultyStore, Life

    freezer = Freezer(orders.freeze_at)
    store = FaultyStore(store_for(orders.url, Outbox()), cast("Any", freezer), Life())
    await Relay(cast("Any", store), Recorder(orders, freezer), **orders.settings).run(handle_signals=True)
