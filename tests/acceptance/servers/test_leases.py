"""Who owns which slots when relay processes come, go, die, freeze and disagree about the time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom import Message, Outbox
from postroom.message import SLOTS, slot_of
from tests.acceptance.servers.crowd import Crowd, locked_work
from tests.acceptance.servers.database import TOPIC, Database, Lease
from tests.acceptance.servers.deliveries import commit_order, duplicates
from tests.acceptance.servers.fleet import LEASE_TTL, Fleet, Worker
from tests.acceptance.servers.worker import MIDDLES, Record
from tests.waiting import eventually

KEYS = [f"order-{number}" for number in range(40)]
LOAD = locked_work(KEYS, longest_hold=0.05)
HOUR = 3600.0


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Iterator[Fleet]:
    database.create_aggregates(KEYS)
    with Fleet(database, tmp_path) as fleet:
        yield fleet


def add(database: Database, *messages: Message) -> list[str]:
    with database.connection() as connection:
        added = Outbox().add_many(connection, messages)
        connection.commit()
    return [message.id for message in added]


def published(fleet: Fleet) -> list[str]:
    return [record.id for record in fleet.records()]


# --- join and leave


def test_relays_that_join_and_leave_share_all_slots_fairly_and_none_has_two_owners(
    database: Database, fleet: Fleet
) -> None:
    epochs = epochs_of(database)
    first = fleet.start()
    fleet.eventually_share(first)
    second, third = fleet.launch(), fleet.launch()
    fleet.eventually_share(first, second, third)
    shares = [fleet.owned(worker) for worker in (first, second, third)]
    assert sorted(len(share) for share in shares) == [21, 21, 22]
    assert not any(one & other for one, other in itertools.combinations(shares, 2))
    second.stop()
    fleet.eventually_share(first, third)
    first.stop()
    fleet.eventually_share(third)
    assert all(epoch > epochs.get(slot, 0) for slot, epoch in epochs_of(database).items())


def epochs_of(database: Database) -> dict[int, int]:
    return {slot: lease.epoch for slot, lease in database.leases().items()}


def test_a_relay_that_stops_leaves_nothing_behind_and_nothing_is_sent_twice(database: Database, fleet: Fleet) -> None:
    first = fleet.start()
    with Crowd(database, LOAD, threads=4):
        second = fleet.start()
        fleet.eventually_share(first, second)
        first.stop()
        assert first.pid not in database.relays()
        fleet.eventually(lambda: fleet.owns_all(second), within=LEASE_TTL * 3)
    fleet.eventually_delivers_all()
    assert duplicates(published(fleet)) == 0


# --- kill -9


def test_the_slots_of_a_killed_relay_are_taken_over_once_its_leases_end_and_not_before(
    database: Database, fleet: Fleet
) -> None:
    survivor, victim = fleet.start(), fleet.start()
    fleet.eventually_share(survivor, victim)
    with Crowd(database, LOAD, threads=4):
        eventually(lambda: victim.pid in {record.pid for record in fleet.records()})
        slots = fleet.owned(victim)
        victim.kill()
        killed = time.monotonic()
        before = database.leases()
        eventually(lambda: all_taken_over(database, slots, before, killed))
        assert time.monotonic() - killed < LEASE_TTL + 1
        assert fleet.owned(survivor) == set(range(SLOTS))
    fleet.eventually_delivers_all()
    assert duplicates(published(fleet)) <= IN_FLIGHT


def all_taken_over(database: Database, slots: set[int], before: dict[int, Lease], asked: float) -> bool:
    """By a relay with a higher epoch; none of them before the lease that was seen had ended."""
    now, leases = time.monotonic(), database.leases()
    taken = {slot for slot in slots if leases[slot].epoch > before[slot].epoch and leases[slot].is_valid}
    late = time.monotonic() - now
    assert all(now + late - asked >= before[slot].expires_in for slot in taken), "somebody was early"
    return taken == slots


IN_FLIGHT = 4 * 2 * 20
"""What a relay may have in memory: two batches for each of its workers."""


def test_nothing_is_lost_or_reordered_when_relays_are_killed_over_and_over(database: Database, fleet: Fleet) -> None:
    kills = 0
    with Crowd(database, LOAD, threads=4):
        workers = [fleet.start(), fleet.start()]
        for _ in range(2):
            before = len(fleet.records())
            eventually(lambda before=before: len(fleet.records()) > before + 50)
            workers.pop(0).kill()
            kills += 1
            workers.append(fleet.start())
    fleet.eventually_delivers_all()
    assert duplicates(published(fleet)) <= kills * IN_FLIGHT


# --- frozen beyond the lease


@pytest.mark.parametrize(
    "moments",
    [("before publish", "between messages", "after renew"), ("after fetch", "before settle", "before renew")],
    ids=" - ".join,
)
def test_relays_that_wake_up_after_their_leases_ended_publish_nothing_more_in_the_slots_they_lost(
    database: Database, fleet: Fleet, moments: tuple[str, ...]
) -> None:
    heir = fleet.start()
    with Crowd(database, LOAD, threads=3):
        sleepers = [fleet.launch(freeze_at=moment, settings={"workers": 1}) for moment in moments]
        fleet.eventually(lambda: all(sleeper.is_frozen() for sleeper in sleepers))
        fleet.eventually(lambda: fleet.owns_all(heir))
        everywhere(fleet, heir)
        for sleeper in sleepers:
            sleeper.thaw()
        fleet.eventually_share(heir, *sleepers)
    fleet.eventually_delivers_all()
    assert late_publishes(fleet.records()) == []
    assert database.count("holds") == 0
    assert duplicates(published(fleet)) <= len(sleepers) * IN_FLIGHT


@pytest.mark.parametrize("moment", MIDDLES)
def test_a_relay_that_freezes_in_the_middle_of_a_transaction_does_not_stop_the_others(
    database: Database, fleet: Fleet, moment: str
) -> None:
    if moment == "while it sets the doorbell" and not database.is_postgresql:
        return
    heir = fleet.start()
    with Crowd(database, LOAD, threads=3):
        sleeper = fleet.launch(freeze_at=moment)
        fleet.eventually(sleeper.is_frozen)
        fleet.eventually(lambda: fleet.owns_all(heir))
        everywhere(fleet, heir)
        sleeper.thaw()
        fleet.eventually_share(heir, sleeper)
    fleet.eventually_delivers_all()


def everywhere(fleet: Fleet, heir: Worker) -> None:
    """It has published in every slot since it owns them all."""
    busy = {slot_of(key, "") for key in KEYS}
    before = len(fleet.records())
    fleet.eventually(lambda: busy <= {record.slot for record in fleet.records()[before:] if record.pid == heir.pid})


def late_publishes(records: Sequence[Record]) -> list[Record]:
    """What was published with an epoch although one with a higher epoch had been published in the same slot before."""
    highest: dict[int, int] = {}
    late: list[Record] = []
    for record in records:
        if record.epoch < highest.get(record.slot, 0):
            late.append(record)
        highest[record.slot] = max(record.epoch, highest.get(record.slot, 0))
    return late


def test_a_relay_that_refuses_a_message_after_it_lost_the_slot_leaves_no_ghost_hold(
    database: Database, fleet: Fleet
) -> None:
    sleeper = fleet.start(refuse_when_thawed="poison")
    add(database, *(Message(topic=TOPIC, payload={"version": 0}, key="poison") for _ in range(2)))
    eventually(sleeper.is_frozen)
    heir = fleet.start()
    eventually(lambda: len(published(fleet)) == 2)
    eventually(lambda: database.count("outbox") == 0)
    sleeper.thaw()
    fleet.eventually_share(heir, sleeper)
    assert (database.count("holds"), database.count("dead"), database.count("later")) == (0, 0, 0)
    heir.stop()
    fleet.eventually_share(sleeper)
    assert database.count("holds") == 0


# --- a clock that is wrong


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_relay_whose_clock_is_wrong_by_an_hour_behaves_like_any_other(
    database: Database, fleet: Fleet, by: float
) -> None:
    right, wrong = fleet.start(), fleet.start(clock_is_wrong_by=by)
    fleet.eventually_share(right, wrong)
    in_half_an_hour = datetime.now(UTC) + timedelta(minutes=30)
    due = add(database, *(message(n, delay="1s", expires_at=in_half_an_hour) for n in range(64)))
    never = add(database, *(message(n, delay="30m") for n in range(64)))
    expired = add(database, *(message(n, expires_at=datetime.now(UTC) - timedelta(minutes=30)) for n in range(64)))
    with Crowd(database, LOAD, threads=3):
        eventually(lambda: set(due) <= set(published(fleet)))
        fleet.eventually_share(right, wrong)
    fleet.eventually_delivers_all()
    assert not set(published(fleet)) & {*never, *expired}
    assert database.count("later") == len(never)
    assert database.count("dead") == len(expired)
    assert duplicates(published(fleet)) == 0

    now, clocks = time.time(), {record.pid: record.wall_clock for record in fleet.records()}
    assert abs(clocks[right.pid] - now) < HOUR / 2 < abs(clocks[wrong.pid] - now), "one clock really was wrong"


def message(number: int, **options: object) -> Message:
    return Message(topic=TOPIC, payload={"version": 0}, key=f"timed-{number}", **options)  # type: ignore[arg-type]


# --- rebalance under load


def test_nothing_is_lost_reordered_or_sent_twice_while_relays_join_and_leave_all_the_time(
    database: Database, fleet: Fleet
) -> None:
    with Crowd(database, LOAD, threads=4):
        workers = [fleet.start(), fleet.start()]
        for _ in range(4):
            before = len(fleet.records())
            joining = fleet.start()
            workers.pop(0).stop()
            workers.append(joining)
            eventually(lambda before=before: len(fleet.records()) > before + 30)
    fleet.eventually_delivers_all()
    assert late_publishes(fleet.records()) == []
    assert duplicates(published(fleet)) == 0
    assert sum(map(len, commit_order(database).values())) > 100
