"""What every broker must survive: from a real database through a relay to a broker that fails, read by another client.

Afterwards nothing is lost, no key is out of order, nothing died of the outage, and what came twice is at most what was
in flight. What was counted is shown at the end of the run.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pytest

from postroom import Message, Outbox
from postroom.events import BreakerClosed, BreakerOpened, Event
from postroom.testing.suite import Suite
from tests.acceptance.servers.conftest import Named, emptied
from tests.acceptance.servers.database import Database
from tests.acceptance.servers.deliveries import in_order, relay_running
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.private import PrivateServer
from tests.waiting import eventually

OUTAGE = float(os.environ.get("POSTROOM_OUTAGE", "3"))
"""Seconds for which a broker is down."""
LULL = max(1.0, OUTAGE / 3)
"""In a long outage less is written at a time, so that it takes no longer to deliver than after a short one."""
KEYS = [f"order-{number}" for number in range(20)]
SETTINGS: dict[str, Any] = {"lease_ttl": "4s", "publish_timeout": "1s", "batch_size": 50, "breaker_cap": "1s"}
IN_FLIGHT = 4 * 2 * 50
"""What a relay may have in memory: two batches for each of its workers."""
PATIENCE = 60.0

Arrived = tuple[str, int]
"""The key of a message, and its number within the key."""


@dataclass(frozen=True)
class Verdict:
    committed: int
    arrived: int
    lost: int
    reordered: int
    dead: int
    duplicates: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in asdict(self).items())


class Breakers:
    """What a relay says about its destination."""

    def __init__(self) -> None:
        self.opened, self.closed = threading.Event(), threading.Event()

    def notice(self, event: Event) -> None:
        if isinstance(event, BreakerOpened):
            self.opened.set()
        elif isinstance(event, BreakerClosed):
            self.closed.set()


class Writer:
    """Commits messages of every key in turn until it is told to stop."""

    def __init__(self, database: Database, topic: str, pause: float) -> None:
        self._database, self._topic, self._pause = database, topic, pause
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.rounds = 0

    def _write(self) -> None:
        outbox = Outbox()
        with self._database.connection() as connection:
            while not self._stopped.is_set():
                number = self.rounds + 1
                outbox.add_many(
                    connection, [Message(topic=self._topic, key=key, payload={"number": number}) for key in KEYS]
                )
                connection.commit()
                self.rounds = number
                time.sleep(self._pause)  # a load, not a flood

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class Private(Protocol):
    """A broker of one test's own."""

    def start(self) -> str: ...

    def crash(self) -> None: ...

    def start_again(self) -> None: ...

    def stop(self) -> None: ...


class AtBroker:
    broker: str
    """Its name among the services."""

    def shared(self) -> str:
        """The address of a broker that is there for every test."""
        return server_url(self.broker)

    @pytest.fixture
    def database(self, database_of_this_worker: Named) -> Iterator[Database]:
        with closing(emptied("postgresql-15", database_of_this_worker)) as database:
            yield database


class LoadSuite(AtBroker, Suite):
    """Messages are written and delivered while something happens to the broker."""

    pause = 0.005
    """Seconds between two messages of a key: not much more shall be written than can be delivered."""
    settings = SETTINGS

    def to(self, address: str) -> str:
        """The URL of the destination at this broker."""
        return address

    @abstractmethod
    def prepare(self, address: str) -> str:
        """Make a new place for messages to arrive at; the topic that leads there."""

    @abstractmethod
    def arrived(self, address: str, topic: str) -> Iterable[Arrived]:
        """All there is so far, oldest first, read with another client than the publisher's."""

    def count(self, address: str, topic: str) -> int:
        """How many there are so far."""
        return len(list(self.arrived(address, topic)))

    @contextmanager
    def load(
        self, database: Database, address: str, direct: str, record: Callable[[str, object], None], faults: int
    ) -> Iterator[tuple[Breakers, Callable[[], int]]]:
        """Within, messages are written and delivered; afterwards everything is judged."""
        topic, breakers = self.prepare(direct), Breakers()
        with (
            relay_running(database, self.to(address), breakers, **self.settings),
            Writer(database, topic, self.pause * LULL) as writer,
        ):
            yield breakers, lambda: self.count(direct, topic)
            writer.stop()
            committed = writer.rounds * len(KEYS)
            eventually(
                lambda: database.count("outbox") == 0, within=PATIENCE, otherwise=lambda: database.count("outbox")
            )
            verdict = judge(list(self.arrived(direct, topic)), writer.rounds, database.count("dead"))
        record("faults", f"{self.broker}: {verdict}")
        assert committed > 0
        assert (verdict.lost, verdict.reordered, verdict.dead) == (0, 0, 0)
        assert verdict.duplicates <= faults * IN_FLIGHT


class FaultSuite(LoadSuite):
    enough = 10_000
    """Bytes that a client says on a connection before answers to it are swallowed."""

    def private(self) -> Private:
        server_url(self.broker)  # skip if there is none
        return PrivateServer(self.broker)

    def network(self, address: str) -> AbstractContextManager[Proxy]:
        """Between the relay and the shared broker."""
        return Proxy(address)

    def test_a_broker_that_is_down_for_a_while_loses_and_reorders_nothing(
        self, database: Database, record_property: Callable[[str, object], None]
    ) -> None:
        private = self.private()
        try:
            address = private.start()
            with self.load(database, address, address, record_property, faults=1) as (breakers, count):
                eventually(count)
                private.crash()
                assert breakers.opened.wait(PATIENCE)
                time.sleep(OUTAGE)
                breakers.closed.clear()
                private.start_again()
                assert breakers.closed.wait(PATIENCE)
        finally:
            private.stop()

    def test_connections_that_are_cut_again_and_again_lose_and_reorder_nothing(
        self, database: Database, record_property: Callable[[str, object], None]
    ) -> None:
        direct, cuts = self.shared(), 8
        with (
            self.network(direct) as proxy,
            self.load(database, proxy.url, direct, record_property, faults=cuts) as (_, count),
        ):
            for _ in range(cuts):
                before = count()
                eventually(lambda before=before: count() > before, within=PATIENCE)
                proxy.cut()

    def test_connections_that_fall_silent_are_replaced(
        self, database: Database, record_property: Callable[[str, object], None]
    ) -> None:
        """Nobody closes them, as when a router on the way forgot them. New ones are fine."""
        direct, times = self.shared(), 2
        with (
            self.network(direct) as proxy,
            self.load(database, proxy.url, direct, record_property, faults=4 * times) as (_, count),
        ):
            for _ in range(times):
                before = count()
                eventually(lambda before=before: count() > before, within=PATIENCE)
                proxy.stall()
                silent = count()
                eventually(lambda silent=silent: count() > silent, within=PATIENCE)
            proxy.cut()

    def test_answers_that_are_swallowed_lose_and_reorder_nothing(
        self, database: Database, record_property: Callable[[str, object], None]
    ) -> None:
        """The broker has the messages, and the relay does not know."""
        direct, times = self.shared(), 2
        with (
            self.network(direct) as proxy,
            self.load(database, proxy.url, direct, record_property, faults=4 * times) as (breakers, count),
        ):
            for _ in range(times):
                before = count()
                eventually(lambda before=before: count() > before, within=PATIENCE)
                breakers.opened.clear()
                proxy.swallow_answers(lambda said, _: len(said) > self.enough)
                assert breakers.opened.wait(PATIENCE)
                breakers.closed.clear()
                proxy.heal()
                assert breakers.closed.wait(PATIENCE)


def judge(arrived: list[Arrived], rounds: int, dead: int) -> Verdict:
    committed = {(key, number) for key in KEYS for number in range(1, rounds + 1)}
    orders = in_order(arrived)
    return Verdict(
        committed=len(committed),
        arrived=len(arrived),
        lost=len(committed - set(arrived)),
        reordered=sum(order != sorted(order) for order in orders.values()),
        dead=dead,
        duplicates=sum(count - 1 for count in Counter(arrived).values()),
    )
