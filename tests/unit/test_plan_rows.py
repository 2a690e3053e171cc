"""Decisions of the plan where rows are claimed, not slots: keys do not matter, and no row may be forgotten."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from postroom import ConfigurationError
from postroom.message import Message
from postroom.ports import NO_LIMIT, Features, Fetched, Gate, Lease, Settled, Settlement
from postroom.relay.breaker import Breaker
from postroom.relay.outlet import Outlet
from postroom.relay.plan import Plan
from postroom.routing import Globs
from postroom.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATE = Gate(1, "t", None)


def make_plan(*, gates: tuple[Gate, ...] = (), **settings: object) -> tuple[Plan, Outlet]:
    breaker = Breaker(initial=1.0, cap=60.0, trip_after=5)
    outlet = Outlet(name="out", features=Features(ordered=True), breaker=breaker)
    plan = Plan(
        relay="me",
        settings=Settings.of(claim="rows", **settings),
        outlets=[outlet],
        route=lambda topic: outlet,
        random=lambda: 0.5,
        publish_timeout=5.0,
    )
    plan.own(Lease(slot=1, owner="me", epoch=7, expires_in=15.0, mark=0), 100.0, (), gates, 0.0)
    return plan, outlet


def message(position: int, key: str | None = "k") -> Message:
    return Message(topic="t", payload=b"", key=key, position=position, slot=1)


def read(plan: Plan, *messages: Message) -> None:
    plan.expect_news([1])
    wanted = plan.wants(0.0)
    assert wanted is not None
    plan.take(wanted, Fetched(list(messages), NO_LIMIT, NOW), 0.0)


def settle(plan: Plan) -> Settlement:
    settlement = plan.take_settlement()
    assert settlement is not None
    plan.settled(settlement, Settled(), 0.0)
    return settlement


def test_messages_of_one_key_fly_side_by_side_and_are_settled_in_any_order() -> None:
    plan, outlet = make_plan()
    read(plan, message(1), message(2), message(3))
    _, two, three = plan.next_batch(outlet, 0.0)
    plan.answer(three, None, 0.0)
    plan.answer(two, None, 0.0)
    assert [each.position for each in settle(plan).delivered] == [3, 2]


@pytest.mark.parametrize("retry", ["steps 1h", "never"])
def test_a_message_that_fails_holds_nothing_up(retry: str) -> None:
    plan, outlet = make_plan(retry=retry)
    read(plan, message(1))
    [failed] = plan.next_batch(outlet, 0.0)
    plan.answer(failed, ValueError("no"), 0.0)
    settlement = settle(plan)
    assert (len(settlement.retries), len(settlement.dead)) == ((1, 0) if retry == "steps 1h" else (0, 1))
    assert not any(entry.holding for entry in settlement.dead)
    assert plan.held == {}
    read(plan, message(2))
    assert [each.position for each in plan.next_batch(outlet, 0.0)] == [2]


def test_attempts_that_are_given_back_hold_nothing_up() -> None:
    plan, outlet = make_plan(retry="steps 1h", trip_after=5)
    read(plan, *(message(position, f"key-{position}") for position in range(1, 6)))
    for failed in plan.next_batch(outlet, 0.0):
        plan.answer(failed, ValueError("no"), 0.0)
    assert {refund.message.position for refund in settle(plan).refunds} == {1, 2, 3, 4}
    assert plan.held == {}


def test_rows_of_a_paused_topic_are_let_go_of_at_once() -> None:
    plan, _ = make_plan()
    plan.pause(Globs(["t"]))
    rows = [message(1), message(2)]
    read(plan, *rows)
    assert settle(plan).parked == [(GATE, row) for row in rows]


def test_rows_that_wait_in_memory_are_let_go_of_when_their_topic_is_paused() -> None:
    plan, outlet = make_plan()
    first, second = message(1), message(2)
    read(plan, first, second)
    plan.pause(Globs(["t"]))
    assert settle(plan).parked == [(GATE, first), (GATE, second)]
    assert plan.next_batch(outlet, 0.0) == []
    plan.pause(Globs())
    assert [gate for gate, _, _ in plan.parked_wants()] == [GATE]
    plan.take_parked(GATE, 0, [first], 10, 0.0)
    assert plan.next_batch(outlet, 0.0) == [first]


def test_rows_behind_a_full_destination_are_let_go_of() -> None:
    plan, outlet = make_plan(batch_size=1)
    outlet.breaker.state = "tripped"
    rows = [message(position) for position in range(1, 7)]
    read(plan, *rows)
    assert [each for _, each in settle(plan).parked] == rows[4:]


def test_rows_that_a_relay_left_behind_a_closed_topic_are_looked_for_by_the_next_one() -> None:
    plan, _ = make_plan(gates=(GATE,))
    assert [gate for gate, _, _ in plan.parked_wants()] == [GATE]


def test_rows_of_a_slot_that_is_given_back_are_given_back_with_it() -> None:
    plan, _ = make_plan()
    read(plan, message(1))
    plan.leave([1])
    assert plan.take_settlement() is None
    assert plan.left() == [1]


def test_only_the_newest_of_a_key_is_refused_where_a_key_has_no_order() -> None:
    with pytest.raises(ConfigurationError, match=r"latest_only.*claim='slots'"):
        Settings.of(claim="rows", latest_only=["stock.*"])
