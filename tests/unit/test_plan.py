"""Single decisions of the plan that generated histories reach seldom."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest

from postroom.errors import DestinationUnavailable, MessageRejected, NotAttempted
from postroom.message import Message
from postroom.ports import NO_LIMIT, Features, Fetched, Gate, Hold, Lease, Settled
from postroom.relay import appetite
from postroom.relay.breaker import Breaker
from postroom.relay.outlet import Outlet, Rate
from postroom.relay.plan import Plan
from postroom.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_plan(
    breaker: Breaker | None = None, rate: Rate | None = None, *, others: bool = False, **settings: object
) -> tuple[Plan, Outlet]:
    """Give the breaker or the rate of another, and they are two pumps of one relay. `others`: than this destination
    there is one that nothing is for."""
    outlet = Outlet(
        name="out",
        features=Features(ordered=True),
        breaker=breaker or Breaker(initial=1.0, cap=60.0, trip_after=5),
        rate=rate,
    )
    idle = Outlet(name="idle", features=Features(), breaker=Breaker(initial=1.0, cap=60.0, trip_after=5))
    plan = Plan(
        relay="me",
        settings=Settings.of(**settings),
        outlets=[outlet, *([idle] if others else [])],
        route=lambda topic: outlet,
        random=lambda: 0.5,
        publish_timeout=5.0,
    )
    return plan, outlet


def own(plan: Plan, slot: int = 1, holds: tuple[Hold, ...] = (), mark: int = 0, epoch: int = 7) -> None:
    lease = Lease(slot=slot, owner="me", epoch=epoch, expires_in=15.0, mark=mark)
    plan.own(lease, deadline=100.0, holds=holds, gates=(), now=0.0)


def message(position: int, key: str | None = "k", slot: int = 1, topic: str = "t") -> Message:
    return Message(topic=topic, payload=b"", key=key, position=position, slot=slot)


def read(plan: Plan, *messages: Message) -> None:
    wanted = plan.wants(0.0)
    assert wanted is not None
    plan.take(wanted, Fetched(list(messages), NO_LIMIT, NOW), 0.0)


def test_a_slot_that_is_being_given_back_takes_no_retry_into_memory() -> None:
    plan, _ = make_plan()
    failed = message(1)
    hold = Hold(
        slot=1, topic="t", key="k", message_id=failed.id, position=1, attempts=1, status="retry", due_in=0.1, error=""
    )  # fmt: skip
    own(plan, holds=(hold,))
    plan.leave([1])
    plan.take_heads(plan.due_heads(0.2), [failed], 0.2)
    assert plan.left() == [1]


def test_the_mark_stays_below_what_is_not_settled() -> None:
    plan, outlet = make_plan()
    own(plan)
    read(plan, message(3), message(4, "other"))
    assert plan.marks() == {1: 2}
    first, _ = plan.next_batch(outlet, 0.0)
    plan.answer(first, None, 0.0)
    assert plan.marks() == {1: 2}, "answered, but not written down yet"
    settlement = plan.take_settlement()
    assert settlement is not None
    plan.settled(settlement, Settled(), 0.0)
    assert plan.marks() == {1: 3}


def test_the_mark_stays_below_a_held_key() -> None:
    plan, outlet = make_plan(retry="steps 1h")
    own(plan)
    read(plan, message(3), message(4), message(5, "other"))
    for sent in plan.next_batch(outlet, 0.0):
        plan.answer(sent, ValueError("no") if sent.position == 3 else None, 0.0)
    settlement = plan.take_settlement()
    assert settlement is not None
    plan.settled(settlement, Settled(), 0.0)
    assert plan.marks() == {1: 2}


def test_nothing_starts_that_could_end_after_the_lease() -> None:
    plan, outlet = make_plan()
    own(plan)
    read(plan, message(1))
    assert plan.next_batch(outlet, 95.1) == []
    assert len(plan.next_batch(outlet, 94.9)) == 1


def test_a_key_is_settled_only_up_to_its_first_unanswered_message() -> None:
    plan, outlet = make_plan()
    own(plan)
    read(plan, message(1), message(2), message(3))
    one, two, three = plan.next_batch(outlet, 0.0)
    plan.answer(two, None, 0.0)
    plan.answer(three, None, 0.0)
    assert plan.take_settlement() is None
    plan.answer(one, None, 0.0)
    settlement = plan.take_settlement()
    assert settlement is not None
    assert [delivered.position for delivered in settlement.delivered] == [1, 2, 3]


def test_rows_beyond_a_rewind_are_left_for_the_next_fetch() -> None:
    plan, outlet = make_plan()
    own(plan)
    wanted = plan.wants(0.0)
    assert wanted is not None
    plan.slots[1].rewind(1)  # while the fetch is under way
    plan.take(wanted, Fetched([message(8)], NO_LIMIT, NOW), 0.0)
    assert plan.next_batch(outlet, 0.0) == []
    again = plan.wants(0.0)
    assert again is not None
    assert again.ranges[0].after == 0


def test_a_lost_slot_is_forgotten_but_what_was_delivered_in_it_counts() -> None:
    plan, outlet = make_plan()
    own(plan)
    read(plan, message(1), message(2, "other"))
    one, two = plan.next_batch(outlet, 0.0)
    plan.lose([1])
    assert plan.flying_slots() == {1}
    plan.answer(one, None, 0.0)
    plan.answer(two, ValueError("no"), 0.0)
    settlement = plan.take_settlement()
    assert settlement is not None
    assert (settlement.delivered, settlement.retries) == ([one], [])
    assert plan.flying_slots() == set()
    assert outlet.in_memory == 0


@pytest.mark.parametrize("error", [MessageRejected("bad"), MessageRejected("bad", permanent=True)])
def test_what_was_not_written_down_when_a_slot_was_lost_is_forgotten(error: Exception) -> None:
    """Were it written down when the slot is ours again, the key would be held in the database, and go on here."""
    plan, outlet = make_plan()
    own(plan)
    own(plan, slot=2)
    read(plan, message(1), message(2), message(3, "other", slot=2), message(4, "third"))
    for sent in plan.next_batch(outlet, 0.0):
        plan.answer(sent, None if sent.key == "third" else error, 0.0)
    plan.lose([1])
    own(plan, epoch=8)
    settlement = plan.take_settlement()
    assert settlement is not None
    assert [entry.message.slot for entry in (*settlement.retries, *settlement.dead)] == [2]
    assert [sent.position for sent in settlement.delivered] == [4]
    plan.settled(settlement, Settled(), 0.0)
    read(plan, message(1), message(2))
    assert [(sent.position, sent.attempt) for sent in plan.next_batch(outlet, 0.0)] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("error", [MessageRejected("bad"), MessageRejected("bad", permanent=True)])
def test_a_settlement_that_is_refused_after_the_slot_was_taken_anew_takes_nothing_away(error: Exception) -> None:
    """It could not be written for longer than the lease, and the slot was taken anew before it was tried again."""
    plan, outlet = make_plan(on_dead="continue")
    own(plan)
    rows = [message(1), message(2)]
    read(plan, *rows)
    for sent in plan.next_batch(outlet, 0.0):
        plan.answer(sent, error, 0.0)
    settlement = plan.take_settlement()
    assert settlement is not None
    plan.lose([1])
    own(plan, epoch=8)
    read(plan, *[message(row.position) for row in rows])
    plan.settled(settlement, Settled(refused=frozenset({1})), 0.0)
    assert plan.epochs() == {1: 8}
    assert plan.marks() == {1: 0}
    plan.sweep([1])
    read(plan, *[message(row.position) for row in rows])
    assert [sent.position for sent in plan.next_batch(outlet, 0.0)] == [1, 2]


def test_a_message_that_died_is_suspected_no_more() -> None:
    """The breaker remembers whom it suspects; it must not remember the dead for ever."""
    plan, outlet = make_plan(retry="never", on_dead="continue")
    own(plan)
    read(plan, message(1, "poison"))
    for now in (0.0, 10.0, 20.0, 30.0):
        outlet.breaker.half_open()
        for sent in plan.next_batch(outlet, now):
            plan.answer(sent, ConnectionError("down"), now)
        outlet.breaker.succeeded(message(99))  # others get through in between
    assert plan.take_settlement() is not None
    assert outlet.breaker.suspects == {}


@pytest.mark.parametrize(
    "errors", [(ValueError, ValueError), (ConnectionError, ValueError), (NotAttempted, ValueError)]
)
def test_of_a_key_that_failed_as_a_whole_the_first_message_goes_first_again(
    errors: tuple[type[Exception], ...],
) -> None:
    """A publisher may answer a whole batch with what went wrong, and not with the same words for each."""
    plan, outlet = make_plan(retry="steps 1s")
    own(plan)
    rows = message(1), message(2), message(3)
    read(plan, *rows)
    for sent, error in zip(plan.next_batch(outlet, 0.0), (*errors, errors[-1]), strict=True):
        plan.answer(sent, error("no"), 0.0)
    settlement = plan.take_settlement()
    if settlement is not None:
        plan.settled(settlement, Settled(), 0.0)
    assert [entry.message.position for entry in (settlement.retries if settlement else [])] in ([], [1])
    if heads := plan.due_heads(2.0):
        plan.take_heads(heads, rows[:1], 2.0)
    elif outlet.breaker.probe_due(2.0):
        outlet.breaker.half_open()
    arrived: list[int] = []
    while batch := plan.next_batch(outlet, 2.0):
        arrived += [sent.position for sent in batch]
        for sent in batch:
            plan.answer(sent, None, 2.0)
        if wanted := plan.wants(2.0):
            left = [row for row in rows if row.position not in arrived]
            plan.take(wanted, Fetched(left, NO_LIMIT, NOW), 2.0)
    assert arrived == [1, 2, 3]


def test_while_many_calls_are_under_way_a_small_batch_waits_to_become_a_larger_one() -> None:
    """Else a publisher that takes one batch at a time gets ever smaller ones."""
    plan, outlet = make_plan()
    outlet.features = Features(ordered=True, max_batch=8)
    own(plan)
    read(plan, *(message(number, f"k{number}") for number in range(1, 33)))
    calls = [plan.next_batch(outlet, 0.0) for _ in range(4)]
    assert [len(call) for call in calls] == [8, 8, 8, 8]
    plan.expect_news([1])
    read(plan, message(41, "new"))
    assert plan.next_batch(outlet, 0.0) == []
    plan.expect_news([1])
    read(plan, message(42, "another"))
    assert [sent.key for sent in plan.next_batch(outlet, 0.0)] == ["new", "another"], "a quarter of a batch"
    plan.expect_news([1])
    read(plan, message(43, "last"))
    assert plan.next_batch(outlet, 0.0) == []
    for call in calls[:2]:
        plan.delivered(outlet, call, 0.0)
        plan.call_ended(outlet, 0.0)
    assert [sent.key for sent in plan.next_batch(outlet, 0.0)] == ["last"], "it does not wait for ever"


def test_many_keys_do_not_become_many_small_calls() -> None:
    """A publisher may take calls one by one: each waits for all that are before it."""
    plan, outlet = make_plan(batch_size=40)
    own(plan)
    read(plan, *(message(number, f"k{number}") for number in range(1, 41)))
    first = plan.next_batch(outlet, 0.0)
    plan.expect_news([1])
    for number, landing in enumerate(first[:8], start=41):
        plan.answer(landing, None, 0.0)
        plan.expect_news([1])
        read(plan, message(number, f"k{number}"))
        plan.next_batch(outlet, 0.0)
    assert outlet.calls == 4


def test_a_backlog_is_read_two_batches_at_a_time_and_news_are_not() -> None:
    plan, outlet = make_plan(batch_size=2)
    own(plan)
    limits: list[int] = []
    for found in ([1, 2], [3, 4, 5, 6], [7], [8]):
        wanted = plan.wants(0.0)
        assert wanted is not None
        limits.append(wanted.limit)
        plan.take(wanted, Fetched([message(position, None) for position in found], NO_LIMIT, NOW), 0.0)
        while batch := plan.next_batch(outlet, 0.0):
            plan.delivered(outlet, batch, 0.0)
        plan.expect_news([1])
    assert limits == [2, 4, 4, 2]


def test_a_row_that_is_parked_below_those_that_were_read_is_read_too() -> None:
    """A key was held, and opens while its topic is closed: its rows are parked now, behind others in time only."""
    plan, outlet = make_plan()
    outlet.breaker.state = "tripped"
    gate = Gate(1, "t", None)
    lease = Lease(slot=1, owner="me", epoch=7, expires_in=15.0, mark=0)
    plan.own(lease, deadline=100.0, holds=(), gates=(gate,), now=0.0)
    plan.take_parked(gate, 0, [message(10, "other")], 1, 0.0)
    plan.slots[1].closed_topics["t"].parking = True
    read(plan, message(5))
    settlement = plan.take_settlement()
    assert settlement is not None
    assert [parked.position for _, parked in settlement.parked] == [5]
    plan.settled(settlement, Settled(), 0.0)
    ((_, after, _),) = plan.parked_wants()
    assert after < 5


def releasing(*keys: str) -> tuple[Hold, ...]:
    """Of keys that may go on with what is parked."""
    hold = Hold(
        slot=1, topic="t", key="", message_id="id", position=1, attempts=1, status="releasing", due_in=None, error=""
    )  # fmt: skip
    return tuple(replace(hold, key=key) for key in keys)


def test_parked_rows_are_read_in_turn_and_while_there_is_room() -> None:
    """Else the first of many keys would be read to their ends before the others begin."""
    plan, outlet = make_plan(batch_size=2)
    own(plan, holds=releasing(*"abcdef"))
    positions = count(1)
    for expected in ("abcd", "efab", "cdef"):
        asked: list[str | None] = []
        for gate, after, limit in plan.parked_wants():
            rows = [message(next(positions), gate.key) for _ in range(limit)]
            plan.take_parked(gate, after, rows, limit, 0.0)
            asked.append(gate.key)
        assert asked == [*expected]
        while batch := plan.next_batch(outlet, 0.0):
            plan.delivered(outlet, batch, 0.0)
            plan.call_ended(outlet, 0.0)


def test_the_size_of_parked_rows_is_learnt() -> None:
    plan, _ = make_plan(batch_size=100)
    own(plan, holds=releasing("a", "b"))
    limits: list[int] = []
    for gate, after, limit in plan.parked_wants():
        limits.append(limit)
        large = Message(topic="t", payload=bytes(appetite.BYTES // 4), key=gate.key, position=len(limits), slot=1)
        plan.take_parked(gate, after, [large], limit, 0.0)
    assert limits == [32, 2]


def test_what_waits_for_a_destination_that_is_down_is_parked_however_little_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large messages: memory is full of a few, and no read brings half a batch of those behind them."""
    monkeypatch.setattr(appetite, "BYTES", 3)
    monkeypatch.setattr(appetite, "FIRST_GUESS", 1)
    plan, outlet = make_plan(batch_size=100, others=True)
    own(plan)
    hot = [message(number, f"k{number % 7}") for number in range(1, 301)]
    for now in range(60):
        if outlet.breaker.probe_due(now):
            outlet.breaker.half_open()
        for sent in plan.next_batch(outlet, now):
            plan.answer(sent, DestinationUnavailable("down"), now)
        plan.call_ended(outlet, now)
        plan.expect_news([1])
        for _ in range(200):
            if (wanted := plan.wants(now)) is None:
                break
            (asked,), limit = wanted
            rows = [row for row in hot if row.position > asked.after][: min(limit, asked.limit)]
            plan.take(wanted, Fetched(rows, NO_LIMIT, NOW), now)
            if settlement := plan.take_settlement():
                parked = {row.position for _, row in settlement.parked}
                hot = [row for row in hot if row.position not in parked]
                plan.settled(settlement, Settled(), now)
    assert len(hot) < 10


def test_a_turn_to_probe_that_comes_after_a_success_closes_nothing_again() -> None:
    """It was asked for while the breaker was tripped; another pump got through before the answer came."""
    plan, outlet = make_plan()
    own(plan)
    read(plan, message(1), message(2, "other"))
    breaker = outlet.breaker
    for came in (breaker.half_open, lambda: breaker.probe_lost(0.0, 60.0)):
        breaker.unavailable(message(3), "down", 0.0, lambda: 0.5, None)
        breaker.half_open()
        assert breaker.succeeded(message(3))
        came()
        assert breaker.state == "closed"
    assert len(plan.next_batch(outlet, 0.0)) == 2


def two_pumps(rate: Rate | None = None) -> list[tuple[Plan, Outlet]]:
    """Of one relay, each with messages of two keys."""
    breaker = Breaker(initial=1.0, cap=60.0, trip_after=5)
    pumps = [make_plan(breaker, rate) for _ in range(2)]
    for slot, (plan, _) in enumerate(pumps):
        own(plan, slot)
        read(plan, message(10 * slot + 1, "a", slot), message(10 * slot + 2, "b", slot))
    return pumps


def test_half_open_lets_one_message_go_from_all_pumps_together() -> None:
    (plan, outlet), (other, other_outlet) = two_pumps()
    breaker = outlet.breaker
    breaker.unavailable(message(99), "down", 0.0, lambda: 0.5, None)
    breaker.half_open()
    (probe,) = plan.next_batch(outlet, 1.0)
    assert other.next_batch(other_outlet, 1.0) == []
    plan.answer(probe, NotAttempted("there was no time left to start"), 1.0)
    assert breaker.state == "half-open"
    plan.call_ended(outlet, 1.0)
    assert (breaker.state, breaker.until) == ("tripped", 2.0)
    breaker.half_open()
    assert len(other.next_batch(other_outlet, 2.0)) == 1


def test_an_old_call_of_another_pump_that_ends_says_nothing_about_the_probe() -> None:
    (plan, outlet), (other, other_outlet) = two_pumps()
    breaker = outlet.breaker
    old = other.next_batch(other_outlet, 0.0)
    breaker.unavailable(message(99), "down", 0.0, lambda: 0.5, None)
    breaker.half_open()
    (probe,) = plan.next_batch(outlet, 1.0)
    for each in old:
        other.answer(each, NotAttempted("the relay stopped"), 1.0)
    other.call_ended(other_outlet, 1.0)
    assert breaker.state == "half-open"
    plan.answer(probe, DestinationUnavailable("down", retry_after=50.0), 1.0)
    plan.call_ended(outlet, 1.0)
    assert (breaker.state, breaker.until) == ("tripped", 51.0)


def test_a_probe_is_of_a_topic_that_has_not_failed_if_there_is_one() -> None:
    plan, outlet = make_plan()
    own(plan)
    read(plan, *[message(number, f"k{number}", topic="b") for number in range(1, 9)], message(9, "k9", topic="a"))
    outlet.breaker.unavailable(message(99, topic="b"), "no such topic", 0.0, lambda: 0.5, None)
    outlet.breaker.half_open()
    assert [probe.position for probe in plan.next_batch(outlet, 1.0)] == [9]


def test_a_probe_is_first_of_all_the_one_that_can_be_judged_in_no_other_way() -> None:
    plan, outlet = make_plan()
    own(plan)
    bad = message(2, "bad")
    read(plan, message(1, "good"), bad, message(3, "better"))
    breaker = outlet.breaker
    for now in (0.0, 10.0):
        breaker.unavailable(bad, "come again later", now, lambda: 0.5, 1.0)
        breaker.half_open()
        breaker.succeeded(message(99))
    breaker.unavailable(message(98), "come again later", 20.0, lambda: 0.5, 1.0)
    breaker.half_open()
    (probe,) = plan.next_batch(outlet, 30.0)
    assert probe is bad


def test_a_pump_without_such_a_message_lets_the_others_go_first() -> None:
    (plan, outlet), (other, other_outlet) = two_pumps()
    breaker, bad = outlet.breaker, next(lane.waiting[0] for lane in other_outlet.ready)
    for now in (0.0, 10.0):
        breaker.unavailable(bad, "come again later", now, lambda: 0.5, 1.0)
        breaker.half_open()
        breaker.succeeded(message(99))
    breaker.unavailable(message(98), "come again later", 20.0, lambda: 0.5, 1.0)
    until, later = breaker.until, breaker.until + breaker.initial
    assert (plan.probes(until), other.probes(until)) == ([], [other_outlet])
    assert (plan.probes(later), plan.next_event(until)) == ([outlet], later - until), "the others may have none either"
    breaker.half_open()
    assert plan.next_batch(outlet, until) == []
    assert plan.next_event(until) == later - until
    (probe,) = other.next_batch(other_outlet, until)
    assert probe is bad


def test_a_pump_with_nothing_but_doubtful_messages_lets_the_others_go_first() -> None:
    """A bad message says nothing of the destination; a good one ends the pause."""
    (plan, outlet), (other, other_outlet) = two_pumps()
    breaker = outlet.breaker
    for lane in outlet.ready:
        breaker.unavailable(lane.waiting[0], "connection reset", 0.0, lambda: 0.5, None)
    assert not outlet.gives_way(breaker.until), "in an outage they all fail"
    breaker.half_open()
    breaker.succeeded(message(99))
    for lane in outlet.ready:
        breaker.unavailable(lane.waiting[0], "connection reset", 10.0, lambda: 0.5, None)
    until = breaker.until
    assert (plan.probes(until), other.probes(until)) == ([], [other_outlet])
    assert plan.probes(until + breaker.initial) == [outlet], "the others may have none either"


def test_a_topic_that_is_held_back_is_out_of_memory_until_its_turn() -> None:
    plan, outlet = make_plan()
    own(plan)
    rows = [message(number, f"k{number}", topic="b") for number in (1, 2)]
    read(plan, *rows)
    outlet.breaker.unavailable(message(99, topic="b"), "no such topic", 0.0, lambda: 0.5, None)
    outlet.breaker.succeeded(message(98, topic="a"))
    for sent in plan.next_batch(outlet, 0.0):
        plan.answer(sent, DestinationUnavailable("no such topic"), 0.0)
    plan.call_ended(outlet, 0.0)
    assert [(change.state, change.topic) for change in plan.changes] == [("tripped", "b")]
    assert plan.next_event(0.0) == 1.0
    assert (read_at(plan, 0.0, *rows), outlet.in_memory, plan.marks()) == (None, 0, {1: 0})
    read_at(plan, 1.0, *rows, message(3, "k3", topic="b"))
    (sent,) = plan.next_batch(outlet, 1.0)
    assert sent.position == 3, "it has not failed yet"
    plan.answer(sent, None, 1.0)
    plan.call_ended(outlet, 1.0)
    assert (plan.changes[-1].state, plan.changes[-1].topic) == ("closed", "b")
    assert len(plan.next_batch(outlet, 1.0)) == 2


def read_at(plan: Plan, now: float, *rows: Message) -> None:
    plan.expect_news([1])
    wanted = plan.wants(now)
    assert wanted is not None
    ((_, after, _, _),) = wanted.ranges
    plan.take(wanted, Fetched([row for row in rows if row.position > after], NO_LIMIT, NOW), now)


def test_pumps_share_a_rate() -> None:
    (plan, outlet), (other, other_outlet) = two_pumps(Rate(20.0))
    assert len(plan.next_batch(outlet, 0.0)) == 2
    assert other.next_batch(other_outlet, 0.0) == []
    assert other_outlet.token_in(0.0) == 0.05
    assert len(other.next_batch(other_outlet, 1.0)) == 2, "one may have all of it"
