"""Order, exactly as each mode promises it, with writers that really overlap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Literal

import pytest

from postroom import Message, Outbox
from postroom.publishers.memory import MemoryPublisher
from tests.acceptance.servers.crowd import Crowd, in_thread, locked_work
from tests.acceptance.servers.database import Database
from tests.acceptance.servers.deliveries import commit_order, first_versions, ids, relay_running
from tests.acceptance.servers.hands import KINDS, ConnectionHand, Hand, SessionHand
from tests.waiting import eventually

KEYS = ["order-1", "order-2", "order-3"]

Order = Literal["key", "strict"]


@pytest.fixture
def publisher(database: Database) -> Iterator[MemoryPublisher]:
    """Delivered by a relay that runs for the length of the test."""
    database.create_aggregates(KEYS)
    publisher = MemoryPublisher()
    with relay_running(database, publisher):
        yield publisher


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[Hand]:
    return KINDS[request.param]


# --- with a locked aggregate, in both modes


@pytest.mark.parametrize("order", ["key", "strict"])
def test_key_and_strict_with_a_locked_aggregate_deliver_in_commit_order(
    database: Database, publisher: MemoryPublisher, kind: type[Hand], order: Order
) -> None:
    work = locked_work(KEYS, longest_hold=0.01)
    with Crowd(database, work, threads=6, times=20, outbox=Outbox(order=order), kind=kind):
        pass
    expected = commit_order(database)
    eventually(lambda: len(publisher.messages) >= sum(database.versions().values()))
    assert first_versions(publisher.messages) == expected
    assert len(publisher.messages) == sum(map(len, expected.values())), "each once"


@pytest.mark.parametrize("order", ["key", "strict"])
def test_key_and_strict_through_a_session_deliver_in_commit_order_even_if_the_lock_is_taken_after_add(
    database: Database, publisher: MemoryPublisher, order: Order
) -> None:
    outbox = Outbox(order=order)
    with SessionHand(database, outbox) as one, SessionHand(database, outbox) as other:
        first_added = one.add("order-1")
        second_added = other.add("order-1")
        other.lock("order-1")
        other.commit()
        one.lock("order-1")
        one.commit()
    eventually(lambda: len(publisher.messages) == 2)
    assert ids(publisher) == [second_added.id, first_added.id]


# --- strict, without any lock of the writers' own


def test_strict_makes_the_second_writer_of_a_key_wait_for_the_first(
    database: Database, publisher: MemoryPublisher
) -> None:
    outbox = Outbox(order="strict")
    with ConnectionHand(database, outbox) as one, ConnectionHand(database, outbox) as other:
        first = one.add("order-1")
        second: list[Message] = []
        waiting = in_thread(lambda: (second.append(other.add("order-1")), other.commit()))
        eventually(database.waiting_for_a_lock)
        assert not second
        one.commit()
        waiting.join()
    eventually(lambda: len(publisher.messages) == 2)
    assert [(message.id, message.sequence) for message in publisher.messages] == [(first.id, 1), (second[0].id, 2)]


def test_strict_gives_the_number_of_a_writer_that_rolls_back_to_the_one_that_waits(
    database: Database, publisher: MemoryPublisher
) -> None:
    outbox = Outbox(order="strict")
    with ConnectionHand(database, outbox) as one, ConnectionHand(database, outbox) as other:
        one.add("order-1")
        waiting = in_thread(lambda: (other.add("order-1"), other.commit()))
        eventually(database.waiting_for_a_lock)
        one.rollback()
        waiting.join()
    eventually(lambda: publisher.messages)
    assert [message.sequence for message in publisher.messages] == [1]


def test_strict_lets_writers_of_other_keys_pass_and_commit_in_the_inverse_order_of_insertion(
    database: Database, publisher: MemoryPublisher
) -> None:
    outbox = Outbox(order="strict")
    with ConnectionHand(database, outbox) as one, ConnectionHand(database, outbox) as other:
        first, second = one.add("order-1"), other.add("order-2")
        other.commit()
        eventually(lambda: ids(publisher) == [second.id])
        one.commit()
    eventually(lambda: ids(publisher) == [second.id, first.id])
    assert [message.sequence for message in publisher.messages] == [1, 1]


def test_strict_numbers_are_dense_and_equal_to_commit_order_for_all_writers_without_locks(
    database: Database, publisher: MemoryPublisher, kind: type[Hand]
) -> None:
    commits: dict[int, tuple[float, float]] = {}

    def work(hand: Hand, random: Random) -> None:
        message = hand.add("order-1")
        time.sleep(random.random() * 0.01)
        before = time.monotonic()
        hand.commit()
        assert message.sequence is not None
        commits[message.sequence] = (before, time.monotonic())

    with Crowd(database, work, threads=6, times=15, outbox=Outbox(order="strict"), kind=kind):
        pass
    eventually(lambda: len(publisher.messages) >= 90)
    assert [message.sequence for message in publisher.messages] == list(range(1, 91))
    assert out_of_order(commits) == []


def out_of_order(commits: dict[int, tuple[float, float]]) -> list[tuple[int, int]]:
    """Numbers that a commit got although one with a lower number began only after it was over."""
    return [
        (number, lower)
        for number, (_, ended) in commits.items()
        for lower, (began, _) in commits.items()
        if lower < number and ended < began
    ]


def test_strict_sessions_that_add_several_keys_in_any_order_do_not_deadlock(
    database: Database, publisher: MemoryPublisher
) -> None:
    def work(hand: Hand, random: Random) -> None:
        for key in random.sample(KEYS, len(KEYS)):
            hand.add(key)
        hand.commit()

    with Crowd(database, work, threads=6, times=10, outbox=Outbox(order="strict"), kind=SessionHand):
        pass
    eventually(lambda: len(publisher.messages) >= 180)
    for key in KEYS:
        sequence = [message.sequence for message in publisher.messages if message.key == key]
        assert sequence == list(range(1, 61))


# --- key, without locks


def test_key_without_locks_loses_nothing_and_delivers_each_once_in_no_defined_order(
    database: Database, publisher: MemoryPublisher
) -> None:
    with ConnectionHand(database, Outbox()) as one, ConnectionHand(database, Outbox()) as other:
        first, second = one.add("order-1"), other.add("order-1")
        other.commit()
        eventually(lambda: ids(publisher) == [second.id])
        one.commit()
    eventually(lambda: len(publisher.messages) == 2)
    assert set(ids(publisher)) == {first.id, second.id}
    eventually(lambda: database.count("outbox") == 0)


def test_key_without_locks_loses_nothing_of_many_writers_of_one_key(
    database: Database, publisher: MemoryPublisher, kind: type[Hand]
) -> None:
    committed: list[str] = []

    def work(hand: Hand, random: Random) -> None:
        message = hand.add("order-1")
        time.sleep(random.random() * 0.02)
        if random.random() < 0.2:
            hand.rollback()
        else:
            hand.commit()
            committed.append(message.id)

    with Crowd(database, work, threads=6, times=25, kind=kind):
        pass
    eventually(lambda: len(publisher.messages) >= len(committed))
    eventually(lambda: database.count("outbox") == 0)
    assert sorted(ids(publisher)) == sorted(committed)
