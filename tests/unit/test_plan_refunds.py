"""Failures that turn out to be an outage are given back, and a key keeps its order through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from postroom.errors import MessageRejected, NotAttempted
from postroom.message import Message
from postroom.ports import Gate, Hold, Settled, Settlement
from postroom.relay.breaker import MOST, Failure
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


def test_a_dead_message_that_let_its_key_go_on_goes_last() -> None:
    plan, outlet = plan_of_brief_messages()
    read(plan, of_key(1))
    send(plan, outlet, 1)
    settle(plan)
    read_more(plan, of_key(2, "patient"), of_key(3, "patient"))
    send(plan, outlet, 2)
    settle(plan)
    assert refunds(refuse_others(plan, outlet)) == [1, 2]
    assert plan.held[KEY].position == 2, "it keeps the key"
    assert GATE in [held.name for held in plan.due_heads(0.0)]
    assert plan.slots[1].stale, "the other one is in the hot table again"
    assert plan.marks() == {1: 1}


def test_several_dead_ones_of_a_key_come_back_in_their_order() -> None:
    plan, outlet = plan_of_brief_messages()
    for each in (of_key(1), of_key(2)):
        read_more(plan, each)
        send(plan, outlet, each.position)
        settle(plan)
    assert refunds(refuse_others(plan, outlet)) == [1, 2]
    assert KEY not in plan.held


def test_a_death_that_is_not_written_down_yet_is_given_back_after_it() -> None:
    plan, outlet = plan_of_brief_messages()
    read(plan, of_key(1), *[of_key(100 + number, "patient", f"other-{number}") for number in range(4)])
    send(plan, outlet, 1, 100, 101, 102, 103)
    settlement = plan.take_settlement()
    assert settlement is not None
    assert [entry.message.position for entry in settlement.dead] == [1]
    assert [refund.message.position for refund in settlement.refunds] == [1, 100, 101, 102]
    plan.settled(settlement, Settled(), 0.0)
    assert KEY not in plan.held


def test_a_message_that_holds_its_key_is_due_at_once_with_the_attempts_it_had() -> None:
    plan, outlet = make_plan(retry="never", batch_size=10)
    own(plan)
    read(plan, message(1), message(2))
    send(plan, outlet, 1)
    settle(plan)
    assert plan.held[KEY].status == "dead"
    assert refunds(refuse_others(plan, outlet)) == [1]
    (held,) = [held for held in plan.due_heads(0.0) if held.name == GATE]
    assert (held.position, held.attempts) == (1, 0)


def refuse_elsewhere(outlet: Outlet, count: int = 4) -> None:
    """As another plan with the same destination does."""
    for number in range(count):
        elsewhere = Failure(Message(topic="t", payload=b"", key=str(number), slot=2), 0)
        outlet.breaker.refused(("t", str(number)), elsewhere, "no", 0.0, lambda: 0.5)
    assert outlet.breaker.state == "tripped"
    outlet.breaker.give_back()


def test_another_pump_gives_back_what_failed_in_its_slots() -> None:
    plan, outlet = make_plan(retry="never")
    own(plan)
    read(plan, message(1))
    send(plan, outlet, 1)
    settle(plan)
    refuse_elsewhere(outlet)
    assert refunds(settle(plan)) == [1]
    assert {failure.message.slot for failure in outlet.breaker.given_back.values()} == {2}


def test_a_slot_is_not_left_before_what_another_pump_gave_back_is_written_down() -> None:
    plan, outlet = make_plan(retry="never")
    own(plan)
    read(plan, message(1))
    send(plan, outlet, 1)
    settle(plan)
    plan.leave([1])
    assert plan.left() == [1]
    refuse_elsewhere(outlet)
    assert plan.left() == []
    assert refunds(settle(plan)) == [1]
    assert plan.left() == [1]


def test_of_two_failures_of_a_message_the_attempts_before_the_first_are_given_back() -> None:
    _, outlet = make_plan()
    breaker, bad = outlet.breaker, message(1)
    refuse_elsewhere(outlet, 5)
    for attempts in (0, 1):
        breaker.refused(("t", "k"), Failure(bad, attempts), "no", 0.0, lambda: 0.5)
        breaker.give_back()
    assert breaker.take_refunds([1]) == [Failure(bad, 0)]


def test_not_more_failures_are_remembered_than_is_good() -> None:
    plan, outlet = make_plan(retry="never", on_dead="continue")
    own(plan)
    for position in range(1, MOST + 101):
        read_more(plan, message(position))
        send(plan, outlet, position)
        settle(plan)
    assert len(outlet.breaker.streak) == MOST
    refuse_elsewhere(outlet)
    assert len(refunds(settle(plan), MOST * 2)) == MOST - 4


def test_one_message_without_a_key_is_no_outage_however_often_it_fails() -> None:
    """It has another position with every attempt."""
    plan, outlet = make_plan(retry="steps 0s 0s 0s 0s 0s")
    own(plan)
    bad, dead = message(1, None), list[str]()
    for position in range(1, 7):
        read_more(plan, replace(bad, position=position, attempt=position))
        send(plan, outlet, position)
        dead += [entry.message.id for settlement in settle(plan) for entry in settlement.dead]
        assert outlet.breaker.state == "closed"
    assert dead == [bad.id]


def test_bad_messages_do_not_keep_a_breaker_from_closing() -> None:
    plan, outlet = make_plan(retry="steps 1s 1s 1s")
    own(plan)
    bad, good = range(1, 13), range(100, 120)
    rows = {position: message(position, f"key-{position}") for position in (*bad, *good)}
    read(plan, *[rows[position] for position in bad])
    send(plan, outlet, *bad)
    assert outlet.breaker.state == "tripped"
    settle(plan)
    heads = plan.due_heads(0.0)
    plan.take_heads(heads, [replace(rows[head.position]) for head in heads], 0.0)
    read_more(plan, *[rows[position] for position in good])
    outlet.breaker.half_open()
    assert send(plan, outlet, *bad) == [100]
    assert outlet.breaker.state == "closed"


def test_bad_messages_die_though_they_fail_in_a_row_again_and_again() -> None:
    """As long as others succeed in between. Each row alone looks like an outage."""
    plan, outlet = make_plan(retry="steps 0s 0s")
    own(plan)
    bad, good = [message(position, f"key-{position}") for position in range(1, 6)], count(100)
    read(plan, *bad)
    tries, dead = 0, set[int]()
    while len(dead) < 5:
        tries += 1
        assert tries < 20
        heads = plan.due_heads(0.0)
        plan.take_heads(heads, [replace(row) for row in bad if row.position not in dead], 0.0)
        outlet.breaker.half_open()
        while send(plan, outlet, *range(1, 6)):
            dead |= {entry.message.position for settlement in settle(plan) for entry in settlement.dead}
        read_more(plan, message(next(good), "good"))
        outlet.breaker.half_open()
        send(plan, outlet, *range(1, 6))
        dead |= {entry.message.position for settlement in settle(plan) for entry in settlement.dead}


def test_what_failed_under_another_lease_is_not_given_back() -> None:
    plan, outlet = make_plan(retry="never")
    own(plan)
    read(plan, message(1))
    send(plan, outlet, 1)
    settle(plan)
    plan.lose([1])
    own(plan, epoch=8)
    assert refunds(refuse_others(plan, outlet)) == []


def test_a_message_that_is_refused_for_good_is_not_given_back() -> None:
    plan, outlet = make_plan(retry="steps 0s 0s 0s", batch_size=10)
    own(plan)
    read(plan, message(1))
    send(plan, outlet, 1)
    settle(plan)
    plan.take_heads(plan.due_heads(0.0), [message(1)], 0.0)
    read_more(plan, *[message(100 + number, f"other-{number}") for number in range(4)])
    again, *others = plan.next_batch(outlet, 0.0)
    for other in others:
        plan.answer(other, ValueError("no"), 0.0)
    assert outlet.breaker.state == "tripped"
    plan.answer(again, MessageRejected("bad", permanent=True), 0.0)
    settlements = settle(plan)
    assert refunds(settlements) == []
    assert [entry.message.position for settlement in settlements for entry in settlement.dead] == [1]


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
    assert list(plan.parked_wants()) == []
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
