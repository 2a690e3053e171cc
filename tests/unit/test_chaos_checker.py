"""The judge of the chaos harness, on histories made by hand: it must see each thing that can be wrong, and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chaos import checker
from chaos.checker import AFTERMATH, Arrival, Committed, Fault, History, Verdict, judge

IN_FLIGHT = 2


def committed(key: str | None, *numbers: int | None, mood: str = "good") -> list[Committed]:
    return [Committed(f"{key}-{number}", key, number, mood) for number in numbers]


def strict(key: str, count: int) -> list[Committed]:
    return [Committed(f"{key}-{number}", key, None, "good") for number in range(1, count + 1)]


def arrived(*ids: str, at: float = 0.0, epoch: int = 1, is_again: bool = False) -> list[Arrival]:
    return [
        Arrival(at + position / 10, id, id.rpartition("-")[0] or None, None, epoch, is_again)
        for position, id in enumerate(ids)
    ]


def in_sequence(*ids: str, generation: int = 1) -> list[Arrival]:
    return [
        Arrival(position, id, id.rpartition("-")[0], (generation, int(id.rpartition("-")[2])), 1)
        for position, id in enumerate(ids)
    ]


def judged(
    messages: Iterable[Committed],
    arrivals: Iterable[Arrival],
    *faults: Fault,
    dead: Iterable[str] = (),
    waiting: int = 0,
) -> Verdict:
    return judge(
        History(
            committed=list(messages),
            arrivals=list(arrivals),
            dead=frozenset(dead),
            waiting=waiting,
            faults=faults,
            in_flight=IN_FLIGHT,
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
    assert not judged(messages, [Arrival(0, str(number), None, None, 1) for number in (2, 0, 1)]).violations


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


def test_duplicates_are_allowed_as_far_as_they_were_in_flight() -> None:
    messages, twice = committed("a", 1, 2, 3), ["a-1", "a-2", "a-3"]
    assert not judged(messages, arrived(*twice, "a-2", "a-3"), fault()).violations
    assert judged(messages, arrived(*twice, *twice), fault()).violations == ["duplicates beyond what was in flight 1"]
    assert not judged(messages, arrived(*twice, *twice), fault(), fault()).violations


def test_a_copy_that_the_destination_hands_out_again_is_no_duplicate() -> None:
    arrivals = [*arrived("a-1"), *arrived("a-1", "a-2", is_again=True)]
    verdict = judged(committed("a", 1, 2), arrivals)
    assert (verdict.violations, verdict.duplicates, verdict.delivered) == ([], 0, 2)


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


def test_gaps_and_recoveries_are_measured() -> None:
    arrivals = [*arrived("a-1", at=1.0), *arrived("a-2", at=4.0), *arrived("a-3", at=4.5)]
    verdict = judged(committed("a", 1, 2, 3), arrivals, fault(0.5, 2.0), fault(4.6, 4.7))
    assert verdict.largest_gap == 3.0
    assert verdict.recoveries == [2.0, None]


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"__future__", "collections", "collections.abc", "dataclasses", "itertools", "typing"}
