"""G1 to G7 hold whatever happens: generated histories of commits, rollbacks, crashes, outages and time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from postroom.errors import StoreUnavailable
from postroom.message import Message
from postroom.outbox import Outbox
from postroom.ports import Query, Store
from postroom.stores.memory import MemoryStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import FakeClock
from tests import services
from tests.conftest import server_url

from .relay_model import BLOCK, CONTINUE, HASTY, TOPICS, Crash, SimulatedRelay, World, live, owners, turn_the_loop

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
KEYS = st.sampled_from(["k1", "k2", "k3", None])
ATTEMPTS = 6
NUMBERS = st.integers(0, 2)


class RelayMachine(RuleBasedStateMachine):
    """Three relays may be alive at a time. Every rule leaves the world in a state that must be sound."""

    destinations: ClassVar[dict[str, str]] = {topic: topic for topic in TOPICS}

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.world = World()
        self.outbox = Outbox(clock=self.clock)
        self.store = self.make_store()
        self.relays: list[SimulatedRelay | None] = [None, None, None]
        self.born = 0
        self.run(self.store.open(claim="slots"))
        self.added = 0

    def make_store(self) -> Store:
        return MemoryStore(clock=self.clock)

    def write(self, messages: list[Message], *, commit: bool) -> None:
        try:
            with self.store.begin() as transaction:  # type: ignore[attr-defined]
                self.outbox.add_many(transaction, messages)
                if not commit:
                    raise Crash
        except Crash:
            pass

    def run(self, action: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(action)

    # ------------------------------------------------------------------------------- the applications

    @rule(
        topic=st.sampled_from(TOPICS),
        keys=st.lists(KEYS, min_size=1, max_size=6),
        poison=st.integers(0, 9),
        type=st.sampled_from([None, HASTY]),
    )
    def commit(self, topic: str, keys: list[str | None], poison: int, type: str | None = None) -> None:
        messages = [Message(topic=topic, payload=b"x", key=key, type=type) for key in keys]
        self.write(messages, commit=True)
        for number, message in enumerate(messages):
            self.world.commit(message)
            # More of them, each at the head of a key, would rightly be taken for an outage.
            if number == poison and len(self.world.poison) < 3:
                self.world.poison.add(message.id)

    @rule(topic=st.sampled_from(TOPICS), keys=st.lists(KEYS, min_size=1, max_size=3))
    def roll_back(self, topic: str, keys: list[str | None]) -> None:
        self.write([Message(topic=topic, payload=b"x", key=key) for key in keys], commit=False)

    @rule(topic=st.sampled_from(TOPICS), keys=st.lists(KEYS, min_size=1, max_size=2))
    def write_many(self, topic: str, keys: list[str | None]) -> None:
        messages = [Message(topic=topic, payload=b"x", key=key) for _ in range(20) for key in keys]
        self.write(messages, commit=True)
        for message in messages:
            self.world.commit(message)

    # ------------------------------------------------------------------------------- the relays

    @initialize()
    def begin(self) -> None:
        self.start(0)

    @rule(number=NUMBERS)
    def start(self, number: int) -> None:
        if self.relays[number] is None:
            self.born += 1
            relay = SimulatedRelay(self.store, self.world, self.clock, self.born, self.destinations)
            self.run(relay.open())
            self.relays[number] = relay
            self.act(number, relay.tick())

    @rule(number=NUMBERS)
    def tick(self, number: int) -> None:
        if (relay := self.relays[number]) is not None:
            self.act(number, relay.tick())

    @rule(number=NUMBERS, times=st.integers(1, 4))
    def step(self, number: int, times: int) -> None:
        for _ in range(times):
            if (relay := self.relays[number]) is not None:
                self.act(number, relay.step())

    @rule(
        number=NUMBERS,
        calls=st.integers(0, 6),
        moment=st.sampled_from(["before", "after"]),
        error=st.sampled_from([Crash, StoreUnavailable]),
    )
    def trouble_ahead(self, number: int, calls: int, moment: str, error: type[BaseException]) -> None:
        if (relay := self.relays[number]) is not None:
            relay.store.fault = (calls, moment, error)

    @rule(number=NUMBERS, topics=st.sets(st.sampled_from(TOPICS)))
    def pause(self, number: int, topics: set[str]) -> None:
        if (relay := self.relays[number]) is not None:
            relay.pause(*topics)

    @rule(number=NUMBERS)
    def kill(self, number: int) -> None:
        if (relay := self.relays[number]) is not None:
            self.relays[number] = None
            self.run(relay.crash())

    @rule(number=NUMBERS)
    def stop(self, number: int) -> None:
        if (relay := self.relays[number]) is not None:
            self.relays[number] = None
            self.act(number, relay.stop())

    @rule(number=NUMBERS, topic=st.sampled_from(TOPICS), keys=st.lists(KEYS, min_size=1, max_size=6))
    def oversleep(self, number: int, topic: str, keys: list[str | None]) -> None:
        """A relay is stopped (SIGSTOP) for longer than its lease, right after a refusal; the others take over."""
        self.start(number)
        self.commit(topic, keys, poison=0)
        self.step(number, 1)
        self.clock.advance(16)
        for other in range(3):
            if other != number:
                self.tick(other)
                self.step(other, 2)
        self.step(number, 1)

    @rule(
        number=NUMBERS,
        hasty=st.lists(KEYS, min_size=1, max_size=3),
        patient=st.lists(KEYS, min_size=1, max_size=8),
        steps=st.tuples(*[st.integers(0, 3)] * 3),
        spared=st.booleans(),
    )
    def refuse_until_it_is_an_outage(
        self, number: int, hasty: list[str | None], patient: list[str | None], steps: tuple[int, int, int], spared: bool
    ) -> None:
        """Some die, others of their keys wait for a retry, and then all of it turns out to be the destination's
        fault."""
        self.start(number)
        self.world.refusing = True
        for keys, type, times in ((hasty, HASTY, steps[0]), (patient, None, steps[1]), ([None] * 5, None, steps[2])):
            self.commit(CONTINUE, keys, poison=9, type=type)
            self.tick(number)
            self.step(number, times)
        if spared:
            self.come_up()
            self.clock.advance(1.0)
            self.step(number, 3)

    def act(self, number: int, action: Awaitable[Any]) -> None:
        """A relay that crashes inside its action is gone, and so is all it knew."""
        relay = self.relays[number]
        try:
            self.run(action)
        except Crash:
            self.relays[number] = None
            if relay is not None:
                self.run(relay.crash())

    # ------------------------------------------------------------------------------- destination, time, operators

    @rule(topic=st.sampled_from(TOPICS))
    def go_down(self, topic: str) -> None:
        self.world.down.add(topic)

    @rule()
    def come_up(self) -> None:
        self.world.down.clear()
        self.world.refusing = self.world.blunt = False

    @rule()
    def answer_bluntly(self) -> None:
        self.world.blunt = True

    @rule()
    def refuse_everything(self) -> None:
        self.world.refusing = True

    @rule()
    def hang(self) -> None:
        self.world.hanging = True

    @rule()
    def unhang(self) -> None:
        """What hung goes through after all, however late."""
        self.world.hanging = False
        hung, self.world.hung = self.world.hung, []
        for future in hung:
            if not future.done():
                future.set_result(None)
        self.run(turn_the_loop())

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 16.0, 130.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.world.poison)
    @rule()
    def mend_and_revive(self) -> None:
        """An operator fixes what was wrong with the messages and revives the dead."""
        self.world.poison.clear()
        self.run(self.store.revive(sorted(self.dead_ids())))

    @rule()
    def clean(self) -> None:
        self.run(self.store.clean(retention=None, limit=100))

    # ------------------------------------------------------------------------------- what must hold

    def dead_ids(self) -> set[str]:
        return {entry.message.id for entry in self.run(self.store.entries(Query(state="dead", limit=10_000)))}

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert not self.world.problems, self.world.problems[0]

    @invariant()
    def no_slot_has_two_owners(self) -> None:
        owned = [relay.owned() for relay in live(self.relays)]
        assert sum(map(len, owned)) == len(set().union(*owned) if owned else ()), "two relays own one slot"

    @invariant()
    def nothing_is_lost(self) -> None:
        there = {entry.message.id for entry in self.run(self.store.entries(Query(limit=100_000)))}
        lost = set(self.world.committed) - self.world.first - there
        assert not lost, f"lost: {sorted(lost)[:3]}"

    def teardown(self) -> None:
        try:
            self.heal_and_check()
        finally:
            for relay in live(self.relays):
                self.run(relay.crash())
            self.run(self.store.close())
            self.run(self.loop.shutdown_asyncgens())
            self.loop.close()

    def heal_and_check(self) -> None:
        """All is well again: everything goes out but the dead and what they hold."""
        self.unhang()
        self.come_up()
        if len(self.world.committed) % 2:
            self.go_on()
        else:
            self.begin_anew()
        self.nothing_is_wrong()
        self.check_all_went_out()

    def go_on(self) -> None:
        """One relay keeps what it knows. Good messages come in as well: a destination that refuses everything would
        rightly be taken for one that is down."""
        survivor = next((number for number, relay in enumerate(self.relays) if relay is not None), 0)
        for number in {0, 1, 2} - {survivor}:
            self.kill(number)
        self.start(survivor)
        relay = self.relays[survivor]
        assert relay is not None
        relay.store.fault = None
        relay.pause()
        for _ in range(160):  # three bad messages may follow each other in one key, each with its retries
            for topic in TOPICS:
                self.commit(topic, [None], poison=9)
            self.run(relay.tick())
            self.work(relay)
            self.clock.advance(4)

    def begin_anew(self) -> None:
        """One relay that knows nothing, and another one after it."""
        for number in range(3):
            self.kill(number)
        self.clock.advance(20)
        self.start(0)
        for _ in range(14):
            relay = self.relays[0]
            assert relay is not None
            self.work(relay)
            self.clock.advance(4.9)
            self.run(relay.tick())
            self.clock.advance(130)
            self.kill(0)
            self.start(0)
            self.nothing_is_wrong()

    def work(self, relay: SimulatedRelay) -> None:
        for _ in range(60):
            if not self.run(relay.step()) and not self.run(relay.step()):
                break

    def check_all_went_out(self) -> None:
        dead = self.dead_ids()
        for id in dead:
            attempts = 1 if id in self.world.hasty else ATTEMPTS
            assert self.world.earned(id) >= attempts, f"{id} is dead after {self.world.earned(id)} failures"
        for (topic, key), ids in self.world.order.items():
            blocked = False
            for id in ids:
                blocked |= topic == BLOCK and key is not None and id in dead
                if not blocked and id not in dead:
                    assert id in self.world.first, f"{id} ({topic}, {key}) never went out"
        self.nothing_is_lost()


class PartialOutageMachine(RelayMachine):
    """One destination has all topics, so that those of it which are down are a part of it."""

    destinations: ClassVar[dict[str, str]] = dict.fromkeys(TOPICS, "shared")


class SqliteRelayMachine(RelayMachine):
    """The same over SQLite."""

    def make_store(self) -> Store:
        self.folder = Path(tempfile.mkdtemp(prefix="postroom-model-"))
        import sqlite3

        self.connection = sqlite3.connect(self.folder / "app.db", timeout=5)
        self.store_url = f"sqlite:///{self.folder / 'app.db'}"
        return SqliteStore(self.store_url, clock=self.clock)

    def write(self, messages: list[Message], *, commit: bool) -> None:
        self.outbox.add_many(self.connection, messages)
        if commit:
            self.connection.commit()
        else:
            self.connection.rollback()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.connection.close()
            shutil.rmtree(self.folder, ignore_errors=True)


class PostgresqlRelayMachine(RelayMachine):
    """The same over PostgreSQL, all histories in one database."""

    url: ClassVar[str]

    def make_store(self) -> Store:
        self.store_url = self.url
        self.connection = psycopg.connect(self.url)
        tables = ", ".join(table.name for table in self.outbox.tables.all())
        self.outbox.create_tables(self.connection)
        self.connection.execute(f"TRUNCATE {tables}".encode())
        self.connection.commit()
        return PostgresqlStore(self.url, clock=self.clock)

    def write(self, messages: list[Message], *, commit: bool) -> None:
        self.outbox.add_many(self.connection, messages)
        if commit:
            self.connection.commit()
        else:
            self.connection.rollback()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.connection.close()


def test_a_relay_over_postgresql() -> None:
    server_url("postgresql-15")
    with services.fresh_database("postgresql-15") as url:
        PostgresqlRelayMachine.url = url
        run_state_machine_as_test(
            PostgresqlRelayMachine,
            settings=settings(
                max_examples=8,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
                phases=PHASES,
            ),
        )


TestRelayOverMemory = RelayMachine.TestCase
TestRelayOverMemory.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
    phases=PHASES,
)
TestPartialOutages = PartialOutageMachine.TestCase
TestPartialOutages.settings = settings(TestRelayOverMemory.settings, max_examples=100)
TestRelayOverSqlite = SqliteRelayMachine.TestCase
TestRelayOverSqlite.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
    phases=PHASES,
)
_ = owners
