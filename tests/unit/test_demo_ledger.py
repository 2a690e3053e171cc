"""The demo's ledger must be able to say no: made-up histories in which something went wrong."""

from __future__ import annotations

from postroom.demo.ledger import Committed, Ledger, reckon
from postroom.demo.plan import draw


def committed(*ids: str, topic: str = "orders", key: str = "customer") -> list[Committed]:
    """In this order, in one topic and key."""
    return [Committed(id, topic, key, number) for number, id in enumerate(ids, start=1)]


def ledger(truth: list[Committed], deliveries: str, dead: str = "", waiting: str = "") -> Ledger:
    return reckon(truth, deliveries.split(), dead=dead.split(), waiting=waiting.split())


def test_a_perfect_history_is_kept() -> None:
    result = ledger(committed("a", "b", "c"), "a b c")
    assert result.is_kept
    assert (result.committed, result.delivered, result.dead, result.duplicates, result.pending) == (3, 3, 0, 0, 0)


def test_a_committed_message_that_is_nowhere_is_lost() -> None:
    result = ledger(committed("a", "b", "c"), "a c")
    assert result.lost == ("b",)
    assert not result.is_kept


def test_a_dead_message_is_not_lost_and_lets_others_pass() -> None:
    result = ledger(committed("a", "b", "c"), "a c", dead="b")
    assert result.is_kept
    assert (result.dead, result.lost, result.reordered) == (1, (), ())


def test_a_waiting_message_is_not_lost_but_the_promise_is_not_kept_yet() -> None:
    result = ledger(committed("a", "b"), "a", waiting="b")
    assert (result.lost, result.pending) == ((), 1)
    assert not result.is_kept


def test_a_message_that_was_delivered_but_still_waits_is_delivered() -> None:
    result = ledger(committed("a"), "a", waiting="a")
    assert (result.delivered, result.pending) == (1, 0)


def test_a_delivery_that_nobody_committed_is_a_phantom() -> None:
    result = ledger(committed("a"), "a x")
    assert result.phantom == ("x",)
    assert not result.is_kept


def test_a_phantom_in_the_outbox_counts_before_it_is_sent() -> None:
    assert ledger(committed("a"), "a", dead="x", waiting="y").phantom == ("x", "y")


def test_a_message_that_was_overtaken_is_reordered() -> None:
    result = ledger(committed("a", "b", "c", "d"), "a d b c")
    assert result.reordered == ("b", "c")
    assert not result.is_kept


def test_only_first_deliveries_have_an_order() -> None:
    result = ledger(committed("a", "b"), "a b a b")
    assert result.is_kept
    assert (result.delivered, result.duplicates) == (2, 2)


def test_a_duplicate_does_not_hide_that_the_first_delivery_came_too_late() -> None:
    assert ledger(committed("a", "b"), "b a b").reordered == ("a",)


def test_keys_and_topics_have_no_order_among_each_other() -> None:
    truth = [
        *committed("a", "b"),
        *committed("c", "d", key="another customer"),
        *committed("e", "f", topic="mail"),
    ]
    assert ledger(truth, "e c a f d b").is_kept
    assert ledger(truth, "f c a e d b").reordered == ("e",)


def test_a_seed_always_draws_the_same_plan() -> None:
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_every_plan_has_something_that_goes_wrong() -> None:
    for seed in range(50):
        plan = draw(seed)
        assert 2000 < plan.messages < 4000
        assert any(order.sold_out for order in plan.orders)
        assert any(order.gift == "sold out" and not order.sold_out for order in plan.orders)
        assert {refusal.times for refusal in plan.refusals.values()} == {None, 2}
        assert not plan.writers[plan.crashing_writer][plan.crash_at].sold_out
        committed_orders = {order.reference for order in plan.orders if not order.sold_out}
        assert {order for _, order in plan.refusals} <= committed_orders
