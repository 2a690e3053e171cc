"""The judge of the chaos harness, on histories made by hand: it must see each thing that can be wrong, and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chaos import checker
from chaos.checker import (
    AFTERMATH,
    HANDED_OUT_AGAIN,
    HARMLESS,
    SOON,
    UNSETTLED,
    Arrival,
    Committed,
    Fault,
    History,
    Verdict,
    judge,
)

IN_FLIGHT = 2


def committed(key: str | None, *numbers: int | None, mood: str = "good") -> list[Committed]:
    return [Committed(f"{key}-{number}", key, number, mood) for number in numbers]


def strict(key: str, count: int) -> list[Committed]:
    return [Committed(f"{key}-{number}", key, None, "good", has_sequence=True) for number in range(1, count + 1)]


def arrival(at: float, id: str, sequence: tuple[int, int] | None = None, epoch: int = 1) -> Arrival:
    key = id.rpartition("-")[0] or None
    return Arrival(at, id, key, sequence, epoch, said=(id, key))


def arrived(*ids: str, at: float = 0.0, epoch: int = 1, is_again: bool = False) -> list[Arrival]:
    return [arrival(at + position / 10, id, epoch=epoch)._replace(is_again=is_again) for position, id in enumerate(ids)]


def in_sequence(*ids: str, generation: int = 1) -> list[Arrival]:
    return [arrival(at, id, (generation, int(id.rpartition("-")[2]))) for at, id in enumerate(ids)]


def judged(
    messages: Iterable[Committed],
    arrivals: Iterable[Arrival],
    *faults: Fault,
    dead: Iterable[str] = (),
    waiting: int = 0,
    failures: Iterable[str] = (),
) -> Verdict:
    return judge(
        History(
            committed=list(messages),
            arrivals=list(arrivals),
            dead=frozenset(dead),
            waiting=waiting,
            faults=faults,
            in_flight=IN_FLIGHT,
            failures=list(failures),
        )
    )


def fault(begin: float = 0.0, end: float = 1.0, relays: int = 1, *, makes_stale: bool = True) -> Fault:
    return Fault("kill relay", begin, end, relays, makes_stale)


def test_what_arrives_once_and_in_order_is_right() -> None:
    verdict = judged([*committed("a", 1, 2), *committed("b", 1)], arrived("a-1", "b-1", "a-2"))
    assert verdict.violations == []
    assert (verdict.committed, verdict.delivered, verdict.duplicates) == (3, 3, 0)


def test_what_does_not_arrive_is_lost() -> None:
    verdict = judged(committed("a", 1, 2), arrived("a-1"))
    assert verdict.violations == ["lost 1"]
    assert verdict.examples == {"lost": ["a-2"]}


def test_what_still_waits_is_lost_and_stuck() -> None:
    assert judged(committed("a", 1, 2), arrived("a-1"), waiting=1).violations == ["lost 1", "stuck 1"]


def test_what_was_not_committed_is_a_phantom() -> None:
    assert judged(committed("a", 1), arrived("a-1", "a-2")).violations == ["phantom 1"]


def test_a_run_in_which_nothing_happens_proves_nothing() -> None:
    assert judged([], []).violations == ["nothing was delivered at all"]


@pytest.mark.parametrize(
    ("order", "reordered"),
    [
        (["a-1", "a-2", "a-3"], 0),
        (["a-2", "a-1", "a-3"], 1),
        (["a-3", "a-1", "a-2"], 2),
        (["a-1", "a-1", "a-2", "a-1", "a-3"], 0),  # only the first time counts
    ],
)
def test_who_comes_after_a_later_one_of_its_key_is_reordered(order: list[str], reordered: int) -> None:
    assert judged(committed("a", 1, 2, 3), arrived(*order), fault()).reordered == reordered


def test_keys_have_no_order_among_each_other() -> None:
    assert not judged([*committed("a", 1, 2), *committed("b", 1, 2)], arrived("b-1", "b-2", "a-1", "a-2")).violations


def test_messages_without_a_key_have_no_order() -> None:
    messages = [Committed(str(number), None, None, "good") for number in range(3)]
    assert not judged(messages, [arrival(0, str(number)) for number in (2, 0, 1)]).violations


@pytest.mark.parametrize(
    ("order", "is_right"),
    [
        (["s-1", "s-2", "s-3"], True),
        (["s-2", "s-1", "s-3"], False),
        (["s-1", "s-3", "s-2"], False),
    ],
)
def test_a_sequence_has_its_order(order: list[str], is_right: bool) -> None:
    assert (not judged(strict("s", 3), in_sequence(*order)).violations) == is_right


def test_a_sequence_does_not_begin_anew() -> None:
    arrivals = [*in_sequence("s-1"), *in_sequence("s-2", generation=2)]
    assert judged(strict("s", 2), arrivals).reordered == 1


def test_a_sequence_must_have_the_order_that_its_writers_know() -> None:
    """Where they could count for themselves."""
    messages = [message._replace(number=3 - number) for number, message in enumerate(strict("s", 2), 1)]
    assert judged(messages, in_sequence("s-1", "s-2")).reordered == 1


def test_a_sequence_has_no_gaps() -> None:
    messages = [message for message in strict("s", 3) if message.id != "s-2"]
    assert judged(messages, in_sequence("s-1", "s-3")).reordered == 1


def test_a_sequence_that_was_not_sent_along_is_noticed() -> None:
    assert judged(strict("s", 2), arrived("s-1", "s-2")).reordered == 2


def test_what_died_though_it_is_good_died_of_an_outage() -> None:
    assert judged(committed("a", 1, 2), arrived("a-1"), dead=["a-2"]).violations == ["dead by outage 1"]


def test_poison_dies_or_waits_and_is_not_delivered() -> None:
    messages = [*committed("a", 1), *committed("a", 2, mood="poison")]
    assert not judged(messages, arrived("a-1"), dead=["a-2"]).violations
    assert judged(messages, arrived("a-1", "a-2")).violations == ["poison delivered 1"]
    assert judged(messages, arrived("a-1")).violations == ["lost 1"]


def test_duplicates_are_allowed_as_far_as_they_were_in_flight() -> None:
    messages, twice = committed("a", 1, 2, 3), ["a-1", "a-2", "a-3"]
    assert not judged(messages, arrived(*twice, "a-2", "a-3"), fault()).violations
    assert judged(messages, arrived(*twice, *twice), fault()).violations == ["duplicates beyond what was in flight 1"]
    assert not judged(messages, arrived(*twice, *twice), fault(), fault()).violations


def test_each_duplicate_is_of_a_fault_that_hit_a_relay_just_after_the_first_copy() -> None:
    messages, arrivals = committed("a", 1), [*arrived("a-1", at=10.0), *arrived("a-1", at=60.0)]
    assert judged(messages, arrivals).duplicates_unexplained == 1
    assert judged(messages, arrivals, fault(10.5, 11), fault(50, 59)).duplicates_of == [1, 0]
    assert judged(messages, arrivals, fault(11 + UNSETTLED, 20)).duplicates_unexplained == 1
    assert judged(messages, arrivals, fault(1, 9 - AFTERMATH)).duplicates_unexplained == 1
    assert judged(messages, arrivals, fault(10.5, 11, relays=0)).duplicates_unexplained == 1
    assert judged(messages, arrivals, fault(10.5, 11)._replace(happened=False)).duplicates_unexplained == 1


def test_many_duplicates_of_one_fault_are_not_excused_by_others_that_made_none() -> None:
    messages, ids = committed("a", 1, 2, 3), ["a-1", "a-2", "a-3"]
    others = [fault(begin, begin + 1) for begin in (20, 30, 40)]
    verdict = judged(messages, [*arrived(*ids), *arrived(*ids, at=1)], fault(), *others)
    assert (verdict.duplicates_of, verdict.duplicates_unexplained) == ([2, 0, 0, 0], 1)


@pytest.mark.parametrize("change", [{"key": "b"}, {"said": ("a-2", "a")}, {"said": ("a-1", "b")}])
def test_the_content_and_the_key_of_another_are_noticed(change: dict[str, Any]) -> None:
    assert judged(committed("a", 1), [arrival(0, "a-1")._replace(**change)]).violations == ["corrupted 1"]


def test_a_relay_that_ends_by_itself_is_noticed() -> None:
    verdict = judged(committed("a", 1), arrived("a-1"), failures=["relay 1 ended with status 1"])
    assert verdict.violations == ["relays or writers that failed 1"]


def test_what_cannot_be_read_is_noticed() -> None:
    unreadable = Arrival(1, "", None, None, 0, is_readable=False)
    verdict = judged(committed("a", 1), [*arrived("a-1"), unreadable])
    assert (verdict.violations, verdict.delivered) == (["corrupted 1"], 1)


def test_a_copy_that_the_destination_hands_out_again_is_no_duplicate() -> None:
    arrivals = [*arrived("a-1"), *arrived("a-1", "a-2", is_again=True)]
    verdict = judged(committed("a", 1, 2), arrivals)
    assert (verdict.violations, verdict.duplicates, verdict.delivered) == ([], 0, 2)


def test_a_copy_that_it_says_to_hand_out_again_much_later_is_one() -> None:
    arrivals = [*arrived("a-1", epoch=2), *arrived("a-1", at=1 + HANDED_OUT_AGAIN, is_again=True)]
    verdict = judged(committed("a", 1), arrivals)
    assert (verdict.duplicates_unexplained, verdict.stale) == (1, 1)


class TestStale:
    messages = committed("a", 1, 2, 3, 4)

    def arrivals(self, *stale: str, at: float) -> list[Any]:
        """Of a former owner, after its successor has sent all there is."""
        return [*arrived("a-1", "a-2", "a-3", "a-4", epoch=2), *arrived(*stale, at=at, epoch=1)]

    def test_nobody_sends_for_a_former_owner_unless_something_broke(self) -> None:
        verdict = judged(self.messages, self.arrivals("a-1", at=1), fault(makes_stale=False))
        assert verdict.violations == ["stale 1"]

    def test_what_it_had_under_way_may_arrive(self) -> None:
        assert not judged(self.messages, self.arrivals("a-1", "a-2", at=1), fault()).violations

    def test_no_more_than_that(self) -> None:
        faults = [fault(), *(fault(makes_stale=False) for _ in range(3))]
        assert judged(self.messages, self.arrivals("a-1", "a-2", "a-3", at=1), *faults).violations == ["stale 1"]

    def test_not_much_later(self) -> None:
        assert judged(self.messages, self.arrivals("a-1", at=1.1 + AFTERMATH), fault()).violations == ["stale 1"]

    def test_unless_the_fault_lasts_longer_for_the_consumer(self) -> None:
        longer = fault()._replace(aftermath=AFTERMATH + 1)
        assert not judged(self.messages, self.arrivals("a-1", at=1.1 + AFTERMATH), longer).violations


class TestTimes:
    messages = tuple(
        message._replace(at=at) for message, at in zip(committed("a", 1, 2, 3), (0.5, 1.5, 2.5), strict=True)
    )
    arrivals = (*arrived("a-1", at=1.0), *arrived("a-2", at=4.0), *arrived("a-3", at=4.5))

    def recoveries(self, *faults: Fault) -> list[float | None]:
        return judged(self.messages, self.arrivals, *faults).recoveries

    def test_the_largest_gap_and_the_largest_delay(self) -> None:
        verdict = judged(self.messages, self.arrivals)
        assert (verdict.largest_gap, verdict.largest_gap_began) == (3.0, 1.0)
        assert (verdict.largest_delay, verdict.largest_delay_of) == (2.5, "a-2")

    def test_a_fault_is_over_when_all_that_was_committed_by_its_end_has_arrived(self) -> None:
        assert self.recoveries(fault(0.6, 0.9)) == [pytest.approx(0.1)]
        assert self.recoveries(fault(1.1, 2.0)) == [2.0]
        assert self.recoveries(fault(4.6, 5.0)) == [0.0]

    def test_a_delivery_that_does_not_begin_is_a_gap(self) -> None:
        messages = [message._replace(at=-9.0) for message in self.messages]
        verdict = judged(messages, self.arrivals)
        assert (verdict.largest_gap, verdict.largest_gap_began) == (10.0, -9.0)

    def test_what_waits_for_long_though_nothing_is_broken_is_noticed(self) -> None:
        late = [*self.arrivals[:2], *arrived("a-3", at=2.6 + SOON)]
        verdict = judged(self.messages, late)
        assert verdict.violations == [f"messages that waited for more than {SOON:g} s in peace 1"]
        assert verdict.examples == {"neglected": ["a-3"]}
        assert verdict.longest_wait_in_peace == pytest.approx(SOON + 0.1)

    @pytest.mark.parametrize(
        ("faults", "seconds"),
        [
            ([], 10.0),
            ([(2.0, 3.0)], 9.0),
            ([(-5.0, 3.0)], 7.0),
            ([(8.0, 30.0)], 8.0),
            ([(-5.0, 30.0)], 0.0),
            ([(-5.0, -1.0), (11.0, 12.0)], 10.0),
            ([(5.0, 6.0), (2.0, 3.0)], 8.0),
            ([(2.0, 6.0), (3.0, 4.0)], 6.0),
            ([(2.0, 4.0), (3.0, 6.0), (6.0, 7.0)], 5.0),
        ],
    )
    def test_time_in_which_something_is_broken_is_no_peace(
        self, faults: list[tuple[float, float]], seconds: float
    ) -> None:
        verdict = judged(committed("a", 1), arrived("a-1", at=10.0), *(fault(*times) for times in faults))
        assert (verdict.longest_wait_in_peace, verdict.largest_delay) == (seconds, 10.0)

    @pytest.mark.parametrize("changes", [{"happened": False}, *({"kind": kind} for kind in sorted(HARMLESS))])
    def test_what_must_keep_nobody_waiting_does_not_end_the_peace(self, changes: dict[str, Any]) -> None:
        harmless = fault(0.0, 10.0)._replace(**changes)
        assert judged(committed("a", 1), arrived("a-1", at=10.0), harmless).longest_wait_in_peace == 10.0

    def test_not_if_another_came_in_between(self) -> None:
        assert self.recoveries(fault(1.1, 2.0), fault(3.0, 3.5)) == [None, 1.0]
        assert self.recoveries(fault(0.6, 0.9), fault(1.1, 2.0)) == [pytest.approx(0.1), 2.0]

    def test_nor_if_nothing_happened(self) -> None:
        assert self.recoveries(fault(1.1, 2.0)._replace(happened=False)) == [None]


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {
        "__future__",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "itertools",
        "math",
        "typing",
    }
