"""The judge. It knows what was committed, what arrived, what is left and what was broken, and nothing of how Postroom
works: no import of it, none of the harness."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

AFTERMATH = 2.0
"""Seconds after a fault in which what was under way when it began may still arrive."""

Mood = Literal["good", "moody", "poison"]


class Committed(NamedTuple):
    """A message whose transaction was committed."""

    id: str
    key: str | None
    number: int | None
    """Its place among those of its key, if the writer held a lock; None if it asked for a sequence instead."""
    mood: str
    """`poison`: the destination never takes it. `moody`: at times it does not."""


class Arrival(NamedTuple):
    """A message at the destination."""

    at: float
    id: str
    key: str | None
    sequence: tuple[int, int] | None
    """Generation and number, as sent along."""
    epoch: int
    is_again: bool = False
    """The consumer may have seen this very copy before: the destination says so."""


class Fault(NamedTuple):
    kind: str
    begin: float
    end: float
    relays: int
    """How many relays may have had something under way that they cannot tell the end of."""
    makes_stale: bool
    """Whether what a relay had under way may arrive after another has taken its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    committed: Sequence[Committed]
    arrivals: Sequence[Arrival]
    """In the order in which they came."""
    dead: frozenset[str]
    waiting: int
    """Messages that are still in the outbox, though nothing is broken any more."""
    faults: Sequence[Fault]
    in_flight: int
    """What one relay may have under way at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    committed: int
    delivered: int
    """Different ones."""
    lost: int
    phantom: int
    reordered: int
    stale: int
    """Arrivals of a former owner of the slot, beyond what it had under way when it lost it."""
    dead: int
    dead_by_outage: int
    """Dead, though the destination would have taken them."""
    undead: int
    """Poison that neither died nor waits."""
    duplicates: int
    duplicates_allowed: int
    """As many as were under way when something broke, at most."""
    crashes: int
    waiting: int
    largest_gap: float
    """Seconds without any arrival."""
    recoveries: list[float | None]
    """For each fault: seconds from its end to the next new message."""
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def violations(self) -> list[str]:
        wrong = {
            "lost": self.lost,
            "phantom": self.phantom,
            "reordered": self.reordered,
            "stale": self.stale,
            "dead by outage": self.dead_by_outage,
            "poison delivered": self.undead,
            "stuck": self.waiting,
            "duplicates beyond what was in flight": max(0, self.duplicates - self.duplicates_allowed),
        }
        found = [f"{name} {number}" for name, number in wrong.items() if number]
        return found if self.delivered else [*found, "nothing was delivered at all"]


def judge(history: History) -> Verdict:
    committed = {message.id: message for message in history.committed}
    arrivals = without_repetitions(history.arrivals)
    firsts = first_of_each(arrivals)
    delivered = {arrival.id for arrival in firsts}
    poison = {message.id for message in history.committed if message.mood == "poison"}
    lost = committed.keys() - delivered - history.dead - poison
    phantom = delivered - committed.keys()
    reordered = [*overtaken(firsts, committed), *gaps_in_sequences(firsts, committed, history.dead)]
    stale = excess_of_stale(arrivals, history)
    dead_by_outage = history.dead - poison
    return Verdict(
        committed=len(committed),
        delivered=len(delivered),
        lost=len(lost),
        phantom=len(phantom),
        reordered=len(reordered),
        stale=len(stale),
        dead=len(history.dead),
        dead_by_outage=len(dead_by_outage),
        undead=len(poison & delivered),
        duplicates=len(arrivals) - len(firsts),
        duplicates_allowed=sum(fault.relays for fault in history.faults) * history.in_flight,
        crashes=sum(fault.relays > 0 for fault in history.faults),
        waiting=history.waiting,
        largest_gap=largest_gap(arrivals),
        recoveries=[recovery(fault, firsts) for fault in history.faults],
        examples={
            name: sorted(ids)[:10]
            for name, ids in {
                "lost": lost,
                "phantom": phantom,
                "reordered": reordered,
                "stale": stale,
                "dead by outage": dead_by_outage,
            }.items()
            if ids
        },
    )


def without_repetitions(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """A copy that the destination hands out again, and that is here already, was not sent again."""
    seen: set[str] = set()
    kept: list[Arrival] = []
    for arrival in arrivals:
        if not (arrival.is_again and arrival.id in seen):
            kept.append(arrival)
        seen.add(arrival.id)
    return kept


def first_of_each(arrivals: Iterable[Arrival]) -> list[Arrival]:
    firsts: dict[str, Arrival] = {}
    for arrival in arrivals:
        firsts.setdefault(arrival.id, arrival)
    return list(firsts.values())


def overtaken(firsts: Iterable[Arrival], committed: dict[str, Committed]) -> list[str]:
    """Messages that came after a later one of their key. Two of one transaction have an order, too."""
    newest: dict[str, int] = {}
    late: list[str] = []
    for arrival in firsts:
        message = committed.get(arrival.id)
        if message is None or message.key is None or message.number is None:
            continue
        if message.number < newest.get(message.key, 0):
            late.append(arrival.id)
        newest[message.key] = max(newest.get(message.key, 0), message.number)
    return late


def gaps_in_sequences(firsts: Iterable[Arrival], committed: dict[str, Committed], dead: frozenset[str]) -> list[str]:
    """Where a sequence was asked for: each must be the next one of its key, unless that is dead."""
    numbers: dict[str, list[tuple[tuple[int, int], str]]] = defaultdict(list)
    for arrival in firsts:
        message = committed.get(arrival.id)
        if message is not None and message.key is not None and message.number is None:
            numbers[message.key].append((arrival.sequence or (0, 0), arrival.id))
    holes = Counter(committed[id].key for id in dead if id in committed)
    wrong: list[str] = []
    for key, sent in numbers.items():
        missing = 0
        generation, last = sent[0][0][0], 0
        for (new_generation, number), id in sent:
            if new_generation != generation:
                generation, last = new_generation, 0
            if number <= last:
                wrong.append(id)
            missing += max(0, number - last - 1)
            last = max(last, number)
        if missing > holes[key]:
            wrong += [f"{missing} missing in {key}"]
    return wrong


def excess_of_stale(arrivals: Iterable[Arrival], history: History) -> list[str]:
    """Sent by a former owner after its successor has sent something of the same key. What was on its way when it lost
    its slots may arrive, soon after the fault is over, and no more of it than was under way."""
    excuses = [fault for fault in history.faults if fault.makes_stale]
    left = [fault.relays * history.in_flight for fault in excuses]
    newest: dict[str, int] = {}
    wrong: list[str] = []
    for arrival in arrivals:
        if arrival.key is None:
            continue
        if arrival.epoch < newest.get(arrival.key, 0):
            for number, fault in enumerate(excuses):
                if left[number] and fault.begin <= arrival.at <= fault.end + AFTERMATH:
                    left[number] -= 1
                    break
            else:
                wrong.append(arrival.id)
        newest[arrival.key] = max(newest.get(arrival.key, 0), arrival.epoch)
    return wrong


def largest_gap(arrivals: Sequence[Arrival]) -> float:
    times = [arrival.at for arrival in arrivals]
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def recovery(fault: Fault, firsts: Iterable[Arrival]) -> float | None:
    return next((arrival.at - fault.end for arrival in firsts if arrival.at >= fault.end), None)
