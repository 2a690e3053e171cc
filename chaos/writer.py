"""A process of the application's: it writes until it is told to stop, or killed.

Each transaction locks a key and numbers its messages, or lets the outbox number them (`order="strict"`), or has
messages without a key. Some take a part back, some take everything back, and some stay open for a while after they have
written.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from dataclasses import dataclass
from random import Random

from postroom import Message, Outbox
from postroom.message import new_id

from .hands import DriverHand, Hand, SessionHand, TakenBack
from .ledger import Truth, key_name
from .parent import end_with_parent

TOPIC = "orders"
POISON = "poison"
MOODS = ("good", "moody", POISON)
PACE = 0.015
"""Seconds between two transactions."""
LONGEST = {"sqlite": 0.02}
"""Seconds that a transaction stays open at most: on SQLite nobody else can write meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    url: str
    store: str
    hand: str
    seed: str
    keys: int


class Writer:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._random = Random(orders.seed)
        self._locked, self._strict = Outbox(), Outbox(order="strict")
        self._longest = LONGEST.get(orders.store, 1.5)
        self._noted: list[str] = []
        """In this transaction."""
        self.stopped = threading.Event()

    def run(self) -> None:
        hand: Hand | None = None
        while not self.stopped.wait(PACE):
            try:
                hand = hand or self._connect()
                self._transact(hand)
            except Exception as error:
                if not is_of_the_database(error):
                    raise
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # the ledger tells what is there
                _close(hand)
                hand = None
        _close(hand)

    def _connect(self) -> Hand:
        return (SessionHand if self._orders.hand == "session" else DriverHand)(self._orders.url)

    def _transact(self, hand: Hand) -> None:
        random = self._random
        self._noted = []
        try:
            self._write(hand)
            if random.random() < 0.1:
                with hand.savepoint():
                    self._write(hand)
                    if random.random() < 0.5:
                        raise TakenBack
        except TakenBack:
            pass
        if random.random() < 0.03:
            self.stopped.wait(random.uniform(0, self._longest))
        if random.random() < 0.08:
            hand.rollback()
        else:
            hand.stamp(self._noted, time.time())
            hand.commit()

    def _write(self, hand: Hand) -> None:
        random, count = self._random, self._random.choice((1, 1, 1, 2, 5))
        kind = random.random()
        if kind < 0.6:
            name = key_name(self._number())
            numbers = self._count(hand, name, count)
            truths = self._add(hand, self._locked, name, count, MOODS)
        elif kind < 0.9:
            name = key_name(self._number(), strict=True)
            truths = self._add(hand, self._strict, name, count, MOODS[:2])
            # the outbox has locked the key by now, if it has written: what we count then has the order of commits
            numbers = self._count(hand, name, count) if hand.writes_at_once else [None] * count
        else:
            truths, numbers = self._add(hand, self._locked, None, count, MOODS), [None] * count
        for truth, number in zip(truths, numbers, strict=True):
            truth.number = number
        hand.note(truths)
        self._noted += [truth.id for truth in truths]

    def _count(self, hand: Hand, name: str, count: int) -> list[int | None]:
        last = hand.number(name, count)
        return [*range(last - count + 1, last + 1)]

    def _number(self) -> int:
        """Of a key: the first is in demand."""
        return 0 if self._random.random() < 0.2 else self._random.randrange(self._orders.keys)

    def _add(self, hand: Hand, outbox: Outbox, name: str | None, count: int, moods: tuple[str, ...]) -> list[Truth]:
        chosen = self._random.choices(moods, (0.95, 0.047, 0.003)[: len(moods)], k=count)
        messages = [
            Message(id=id, topic=TOPIC, key=name, type=mood, payload={"id": id, "key": name})
            for id, mood in ((new_id(), mood) for mood in chosen)
        ]
        hand.add(outbox, messages)
        has_sequence = outbox is self._strict
        return [
            Truth(id=message.id, name=name, mood=message.type, has_sequence=has_sequence, hand=hand.kind, at=0.0)
            for message in messages
        ]


AWAY = {"OperationalError", "InterfaceError", "InternalError"}
"""Errors, as every driver names them, of a database that is away, or that wants all of it tried again."""


def is_of_the_database(error: BaseException) -> bool:
    """All others are somebody's fault, and are not to happen."""
    return isinstance(error, OSError) or any(each.__name__ in AWAY for each in type(error).__mro__)


def _close(hand: Hand | None) -> None:
    if hand is not None:
        try:
            hand.close()
        except Exception as error:
            print(f"could not close: {error}", file=sys.stderr, flush=True)


def main() -> None:
    end_with_parent()
    writer = Writer(Orders(**json.loads(sys.argv[1])))
    signal.signal(signal.SIGTERM, lambda *_: writer.stopped.set())
    writer.run()


if __name__ == "__main__":
    main()
