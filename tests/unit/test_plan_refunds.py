"""Failures that turn out to be an outage are given back, and a key keeps its order through it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from postroom.errors import MessageRejected, NotAttempted
from postroom.message import Message
from postroom.ports import Gate, Hold, Settled, Settlement
from postroom.relay.outlet import Outlet
from postroom.relay.plan import Plan
from postroom.routing import Globs

from .test_plan import make_plan, message, own, read

GATE = Gate(1, "t", "k")
KEY = ("t", "k")


def of_key(position: int, type: str = "brief", key: str = "k") -> Message:
    """A brief one dies of its first failure, and lets its key go on."""
    return Message(topic="t", payload=b"", key=key, type=type, position=position, slot=1)


def plan_of_brief_messages() -> tuple[Plan, Outlet]:
    plan, outlet = make_plan(
        retry={"brief": "never", "*": "steps 1s 1s 1s"}, on_dead={"brief": "continue", "*": "block"}, batch_size=10
    )
    own(plan)
    return plan, outlet


def settle(plan: Plan) -> list[Settlement]:
    done: list[Settlement] = []
    while (settlement := plan.take_settlement()) is not None:
        plan.settled(settlement, Settled(), 0.0)
        done.append(settlement)
    return done


def send(plan: Plan, outlet: Outlet, *refused: int) -> list[int]:
    """Send what may go; those after a refused one of their key are not attempted."""
    batch = plan.next_batch(outlet, 0.0)
    failed: set[str | None] = set()
    for sent in batch:
        if sent.key in failed:
            plan.answer(sent, NotAttempted("one before it failed"), 0.0)
        elif sent.position in refused:
            failed.add(sent.key)
            plan.answer(sent, ValueError("no"), 0.0)
        else:
            plan.answer(sent, None, 0.0)
    plan.call_ended(outlet, 0.0)
    return [sent.position for sent in batch]


def read_more(plan: Plan, *messages: Message) -> None:
    plan.expect_news([1])
    read(plan, *messages)


def refuse_others(plan: Plan, outlet: Outlet) -> list[Settlement]:
    """Messages of four more keys are refused: with the one before, that is an outage."""
    others = [message(100 + number, f"other-{number}") for number in range(5)]
    read_more(plan, *others)
    send(plan, outlet, *[other.position for other in others])
    assert outlet.breaker.state == "tripped"
    return settle(plan)


def refunds(settlements: Sequence[Settlement], below: int = 100) -> list[int]:
    all_of_them = [refund.message.position for settlement in settlements for refund in settlement.refunds]
    return [position for position in all_of_them if position < below]


def drain(plan: Plan, outlet: Outlet, parked: Collection[Message]) -> list[int]:
    """All is well again: what is parked behind the key is read. In which order does it go?"""
    outlet.breaker.half_open()
    sent: list[int] = []
    while wanted := plan.parked_wants():
        for gate, after, limit in wanted:
            there = [one for one in parked if after < one.position not in sent]
            plan.take_parked(gate, after, sorted(there, key=lambda one: one.position), limit, 0.0)
        while gone := send(plan, outlet):
            sent += gone
            settle(plan)
        settle(plan)
    return [position for position in sent if position < 100]


def test_a_message_that_died_before_another_of_its_key_failed_goes_first() -> None:
    plan, outlet = plan_of_brief_messages()
    one, two, three = of_key(1), of_key(2, "patient"), of_key(3, "patient")
    read(plan, one)
    send(plan, outlet, 1)
    settle(plan)
    read_more(plan, two, three)
    send(plan, outlet, 2)
    settle(plan)
    assert refunds(refuse_others(plan, outlet)) == [2, 1]
    assert GATE not in [held.name for held in plan.due_heads(0.0)]
    assert drain(plan, outlet, [one]) == [1]
    assert plan.slots[1].rewind_to == 1, "the two behind it are read again"
    assert plan.marks() == {1: 1}


def test_the_mark_stays_below_one_that_waits_behind_a_refund() -> None:
    plan, outlet = plan_of_brief_messages()
    read(plan, of_key(1))
    send(plan, outlet, 1)
    settle(plan)
    read_more(plan, of_key(2, "patient"))
    send(plan, outlet, 2)
    settle(plan)
    refuse_others(plan, outlet)
    assert plan.marks() == {1: 1}


def test_several_dead_ones_of_a_key_come_back_in_their_order() -> None:
    plan, outlet = plan_of_brief_messages()
    one, two, three = of_key(1), of_key(2), of_key(3)
    for each in (one, two):
        read_more(plan, each)
        send(plan, outlet, each.position)
        settle(plan)
    assert refunds(refuse_others(plan, outlet)) == [2, 1]
    read_more(plan, three)
    assert drain(plan, outlet, [one, two]) == [1, 2]
    assert plan.slots[1].rewind_to == 2


def test_what_waits_in_memory_goes_after_one_that_is_back() -> None:
    plan, outlet = plan_of_brief_messages()
    one, two = of_key(1), of_key(2)
    others = [of_key(100 + number, key=f"other-{number}") for number in range(4)]
    read(plan, one)
    send(plan, outlet, 1)
    settle(plan)
    read_more(plan, *others)
    batch = plan.next_batch(outlet, 0.0)
    read_more(plan, two)
    for sent in batch:
        plan.answer(sent, ValueError("no"), 0.0)
    plan.call_ended(outlet, 0.0)
    assert outlet.breaker.state == "tripped"
    outlet.breaker.half_open()
    assert [lane.name for lane in outlet.ready] == [("t", "other-3")], "not even before the refund is written down"
    assert 1 in refunds(settle(plan))
    assert drain(plan, outlet, [one])[0] == 1
    assert plan.slots[1].rewind_to == 1


def test_a_dead_one_stays_dead_if_a_later_one_of_its_key_is_under_way() -> None:
    plan, outlet = plan_of_brief_messages()
    others = [of_key(100 + number, key=f"other-{number}") for number in range(4)]
    read(plan, of_key(1))
    send(plan, outlet, 1)
    settle(plan)
    read_more(plan, of_key(2), *others)
    batch = plan.next_batch(outlet, 0.0)
    for sent in batch[1:]:
        plan.answer(sent, ValueError("no"), 0.0)
    assert outlet.breaker.state == "tripped"
    assert refunds(settle(plan)) == []
    plan.answer(batch[0], None, 0.0)
    assert plan.out_of_order == []


def test_one_that_is_back_waits_for_a_later_one_that_died_and_holds_the_key() -> None:
    plan, outlet = plan_of_brief_messages()
    read(plan, of_key(1))
    send(plan, outlet, 1)
    settle(plan)
    read_more(plan, of_key(2, "patient"))
    (two,) = plan.next_batch(outlet, 0.0)
    plan.answer(two, MessageRejected("bad", permanent=True), 0.0)
    plan.call_ended(outlet, 0.0)
    settle(plan)
    assert refunds(refuse_others(plan, outlet)) == [1]
    held = plan.held[KEY]
    assert (held.position, held.status, held.parked) == (2, "dead", True)
    assert plan.parked_wants() == []


def test_a_key_that_lets_out_what_is_parked_starts_over_with_one_that_is_back() -> None:
    plan, outlet = plan_of_brief_messages()
    one, two, three = of_key(1), of_key(2), of_key(3)
    hold = Hold(
        slot=1, topic="t", key="k", message_id=one.id, position=1, attempts=0, status="releasing", due_in=None, error=""
    )  # fmt: skip
    own(plan, holds=(hold,))
    plan.take_parked(GATE, 0, [one], 1, 0.0)
    send(plan, outlet, 1)
    settle(plan)
    assert plan.parked_wants()
    plan.take_parked(GATE, 0, [two, three], 10, 0.0)
    outlet.breaker.allowance = 0  # they wait in memory
    assert plan.next_batch(outlet, 0.0) == []
    outlet.breaker.allowance = float("inf")
    lane = outlet.ready.popleft()
    assert [waiting.position for waiting in lane.waiting] == [2, 3]
    others = [message(100 + number, f"other-{number}") for number in range(5)]
    read_more(plan, *others)
    batch = plan.next_batch(outlet, 0.0)
    outlet.ready.append(lane)
    for sent in batch:
        plan.answer(sent, ValueError("no"), 0.0)
    plan.call_ended(outlet, 0.0)
    settle(plan)
    assert drain(plan, outlet, [one, two, three]) == [1, 2, 3]


def test_a_slow_key_that_is_paused_goes_on_afterwards() -> None:
    plan, _ = make_plan(batch_size=4)
    own(plan)
    read(plan, *[message(position) for position in range(1, 10)])
    plan.expect_news([1])
    assert plan.wants(0.0) is None, "there is enough in memory"
    assert plan.wants(5.0) is None
    assert plan.held[KEY].busy, "it has more in memory than its share"
    plan.pause(Globs(["t"]))
    assert KEY not in plan.held
    assert plan.slots[1].rewind_to == 0


def test_a_hold_that_is_not_written_down_yet_is_not_released_by_what_the_database_said_before() -> None:
    plan, outlet = make_plan(retry="never")
    one = message(1)
    hold = Hold(
        slot=1, topic="t", key="k", message_id=one.id, position=1, attempts=0, status="releasing", due_in=None, error=""
    )  # fmt: skip
    own(plan, holds=(hold,))
    plan.take_parked(GATE, 0, [one, message(2)], 10, 0.0)
    send(plan, outlet, 1)
    plan.release_holds([hold], 0.0)
    assert plan.held[KEY].status == "dead"
    settle(plan)
    assert plan.parked_wants() == []
    plan.release_holds([hold], 0.0)
    assert plan.held[KEY].status == "releasing", "now somebody has decided"


def test_parked_rows_that_were_read_before_others_went_back_are_read_again() -> None:
    plan, outlet = make_plan()
    hold = Hold(
        slot=1, topic="t", key="k", message_id="1", position=1, attempts=0, status="releasing", due_in=None, error=""
    )  # fmt: skip
    own(plan, holds=(hold,))
    plan.take_parked(GATE, 0, [message(1), message(2)], 2, 0.0)
    plan.held[KEY].start_draining()  # as when rows went back
    plan.take_parked(GATE, 2, [message(3)], 2, 0.0)
    assert plan.held[KEY].cursor == 0
    assert [sent.position for sent in plan.next_batch(outlet, 0.0)] == [1, 2]
