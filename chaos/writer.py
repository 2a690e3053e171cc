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
from dataclasses import dataclass
from random import Random
from typing import Any

from postroom import Message, Outbox
from postroom.message import new_id

from .hands import DriverHand, Hand, SessionHand, TakenBack
from .ledger import Truth, key_name

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
        self.stopped = threading.Event()

    def run(self) -> None:
        hand: Hand | None = None
        while not self.stopped.wait(PACE):
            try:
                hand = hand or self._connect()
                self._transact(hand)
            except Exception as error:  # the database is away, or wants it tried again: the ledger tells what is there
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                _close(hand)
                hand = None
        _close(hand)

    def _connect(self) -> Hand:
        return (SessionHand if self._orders.hand == "session" else DriverHand)(self._orders.url)

    def _transact(self, hand: Hand) -> None:
        random = self._random
        try:
            self._write(hand)
            if random.random() < 0.1:
                with hand.savepoint():
                    self._write(hand)
                    raise TakenBack
        except TakenBack:
            pass
        if random.random() < 0.03:
            self.stopped.wait(random.uniform(0, self._longest))
        if random.random() < 0.08:
            hand.rollback()
        else:
            hand.commit()

    def _write(self, hand: Hand) -> None:
        """Only one key is locked at a time, so that nobody waits in a circle."""
        random, count = self._random, self._random.choice((1, 1, 1, 2, 5))
        kind = random.random()
        if kind < 0.6:
            name = key_name(self._number())
            last = hand.number(name, count)
            self._add(hand, self._locked, name, list(range(last - count + 1, last + 1)), MOODS)
        elif kind < 0.9:
            self._add(hand, self._strict, f"strict-{self._number()}", [None] * count, MOODS[:2])
        else:
            self._add(hand, self._locked, None, [None] * count, MOODS)

    def _number(self) -> int:
        """Of a key: the first is in demand."""
        return 0 if self._random.random() < 0.2 else self._random.randrange(self._orders.keys)

    def _add(self, hand: Hand, outbox: Outbox, name: str | None, numbers: list[Any], moods: tuple[str, ...]) -> None:
        chosen = self._random.choices(moods, (0.95, 0.047, 0.003)[: len(moods)], k=len(numbers))
        truths = [
            Truth(id=new_id(), name=name, number=number, mood=mood)
            for number, mood in zip(numbers, chosen, strict=True)
        ]
        messages = [
            Message(id=truth.id, topic=TOPIC, key=name, type=truth.mood, payload={"number": truth.number})
            for truth in truths
        ]
        hand.add(outbox, messages, truths)


def _close(hand: Hand | None) -> None:
    if hand is not None:
        try:
            hand.close()
        except Exception as error:
            print(f"could not close: {error}", file=sys.stderr, flush=True)


def main() -> None:
    writer = Writer(Orders(**json.loads(sys.argv[1])))
    signal.signal(signal.SIGTERM, lambda *_: writer.stopped.set())
    writer.run()


if __name__ == "__main__":
    main()
