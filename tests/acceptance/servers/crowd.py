"""Many writers at once, each with its own connection, until they are told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self

from postroom import Outbox
from tests.acceptance.servers.database import Database
from tests.acceptance.servers.hands import ConnectionHand, Hand

Work = Callable[[Hand, Random], object]


class Crowd:
    """Threads that do the same piece of work over and over, each time in a transaction of its own. Within the block
    they work; at its end they finish what they began. What went wrong in one of them is raised there."""

    def __init__(
        self,
        database: Database,
        work: Work,
        *,
        threads: int,
        times: int | None = None,
        outbox: Outbox | None = None,
        kind: type[Hand] = ConnectionHand,
    ) -> None:
        self._database = database
        self._work = work
        self._times = times
        self._outbox = outbox or Outbox()
        self._kind = kind
        self._stopped = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._toil, args=[number]) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._times is None or error is not None:
            self._stopped.set()
        for thread in self._threads:
            thread.join()
        if self._errors and error is None:
            raise self._errors[0]

    def _toil(self, number: int) -> None:
        random, done = Random(number), 0
        try:
            with self._kind(self._database, self._outbox) as hand:
                while not self._stopped.is_set() and done != self._times:
                    self._work(hand, random)
                    done += 1
        except BaseException as error:
            self._errors.append(error)
            self._stopped.set()


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    """Something that waits for others."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def locked_work(keys: Sequence[str], *, longest_hold: float = 0.0, rolled_back: float = 0.1) -> Work:
    """Lock one of the keys, add a message with its version, hold it for a while, and commit or roll back."""

    def work(hand: Hand, random: Random) -> None:
        hand.lock_and_add(random.choice(keys))
        time.sleep(random.random() * longest_hold)
        if random.random() < rolled_back:
            hand.rollback()
        else:
            hand.commit()

    return work
