"""The judge. It knows what was committed, what arrived, what is left and what was broken, and nothing of how Postroom
works: no import of it, none of the harness."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

AFTERMATH = 2.0
"""Seconds after a fault in which what was under way when it began may still arrive."""
UNSETTLED = 3.0
"""Seconds for which what has arrived may not be settled yet."""
HANDED_OUT_AGAIN = 20.0
"""Seconds within which a destination that was killed may hand out again what a consumer has not acknowledged."""
SOON = 30.0
"""Seconds that a message may wait in peace: longer than a lease, a time-out, a pause of a breaker and
the retries of a message together."""

HARMLESS = frozenset({"kill writer", "hold snapshot", "wrong clock", "storm"})
"""Faults that must keep no message waiting: as far as that goes there is peace."""

Mood = Literal["good", "moody", "poison"]


class Committed(NamedTuple):
    """A message whose transaction was committed."""

    id: str
    key: str | None
    number: int | None
    """Its place among those of its key, if the writer knows it: it held a lock."""
    mood: str
    """`poison`: the destination never takes it. `moody`: at times it does not."""
    has_sequence: bool = False
    """The outbox was asked to number it."""
    at: float = 0.0
    """When the writer was about to commit it."""


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
    said: tuple[str, str | None] = ("", None)
    """Id and key, as the content has them."""
    is_readable: bool = True
    """Its id and all else that is sent along could be found."""


class Fault(NamedTuple):
    kind: str
    begin: float
    end: float
    relays: int
    """How many relays may have had something under way that they cannot tell the end of."""
    makes_stale: bool
    """Whether what a relay had under way may arrive after another has taken its place."""
    happened: bool = True
    """It had something to break."""
    aftermath: float = AFTERMATH


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
    failures: Sequence[str] = ()
    """Relays and writers that ended by themselves, or did not end well when they were asked to."""


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
    """Poison that was delivered."""
    corrupted: int
    """Arrived with the content, or the key, of another, or so that nobody can tell what it is."""
    duplicates: int
    duplicates_allowed: int
    """As many as were under way when something broke, at most."""
    duplicates_of: list[int]
    """By fault."""
    duplicates_unexplained: int
    """More than one fault can make, or at a time when there was none."""
    crashes: int
    waiting: int
    failures: list[str]
    largest_gap: float
    """Seconds without any arrival, since the first commit."""
    largest_gap_began: float | None
    largest_delay: float
    """Seconds from a commit to the first arrival."""
    largest_delay_of: str | None
    """Whose that is."""
    longest_wait_in_peace: float
    """The same without the time in which something was broken that may keep messages waiting."""
    neglected: int
    """Messages that waited too long though nothing was broken."""
    recoveries: list[float | None]
    """For each fault: seconds from its end until all that had been committed by then had arrived; None if another fault
    came in between, or nothing happened."""
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
            "corrupted": self.corrupted,
            "stuck": self.waiting,
            "duplicates beyond what was in flight": self.duplicates_unexplained,
            "relays or writers that failed": len(self.failures),
            f"messages that waited for more than {SOON:g} s in peace": self.neglected,
        }
        found = [f"{name} {number}" for name, number in wrong.items() if number]
        return found if self.delivered else [*found, "nothing was delivered at all"]


def judge(history: History) -> Verdict:
    committed = {message.id: message for message in history.committed}
    unreadable = sum(not arrival.is_readable for arrival in history.arrivals)
    arrivals = without_repetitions(arrival for arrival in history.arrivals if arrival.is_readable)
    firsts = first_of_each(arrivals)
    poison = {message.id for message in history.committed if message.mood == "poison"}
    lost = committed.keys() - firsts.keys() - history.dead
    phantom = firsts.keys() - committed.keys()
    reordered = [*overtaken(firsts, committed), *gaps_in_sequences(firsts, committed, history.dead)]
    stale = excess_of_stale(arrivals, history)
    dead_by_outage = history.dead - poison
    corrupted = mixed_up(arrivals, committed)
    excuses, unexplained = explain_duplicates(arrivals, firsts, history)
    waits = {id: (committed[id].at, arrival.at) for id, arrival in firsts.items() if id in committed}
    delays, trouble = {id: end - begin for id, (begin, end) in waits.items()}, Trouble(history.faults)
    in_peace = {id: delays[id] - trouble.between(begin, end) for id, (begin, end) in waits.items()}
    neglected = [id for id, seconds in in_peace.items() if seconds > SOON]
    gap_began, gap = largest_gap(arrivals, history.committed)
    return Verdict(
        committed=len(committed),
        delivered=len(firsts),
        lost=len(lost),
        phantom=len(phantom),
        reordered=len(reordered),
        stale=len(stale),
        dead=len(history.dead),
        dead_by_outage=len(dead_by_outage),
        undead=len(poison & firsts.keys()),
        corrupted=len(corrupted) + unreadable,
        duplicates=len(arrivals) - len(firsts),
        duplicates_allowed=excuses.allowed,
        duplicates_of=excuses.taken,
        duplicates_unexplained=len(unexplained),
        crashes=sum(fault.happened and fault.relays > 0 for fault in history.faults),
        waiting=history.waiting,
        failures=list(history.failures),
        largest_gap=gap,
        largest_gap_began=gap_began,
        largest_delay=max(delays.values(), default=0.0),
        largest_delay_of=max(delays, key=delays.__getitem__, default=None),
        longest_wait_in_peace=max(in_peace.values(), default=0.0),
        neglected=len(neglected),
        recoveries=[recovery(fault, history.faults, firsts, committed) for fault in history.faults],
        examples={
            name: sorted(ids)[:10]
            for name, ids in {
                "lost": lost,
                "phantom": phantom,
                "reordered": reordered,
                "stale": stale,
                "dead by outage": dead_by_outage,
                "corrupted": corrupted,
                "duplicates": unexplained,
                "neglected": neglected,
            }.items()
            if ids
        },
    )


class Excuses:
    """For what a fault may bring about: something at a time near to it, and no more than the relays that it hit may
    have had under way."""

    def __init__(self, faults: Sequence[Fault], in_flight: int, before: float) -> None:
        self._faults = faults
        self._before = before
        self._left = [fault.relays * in_flight if fault.happened else 0 for fault in faults]
        self._soonest_over = sorted(range(len(faults)), key=lambda number: faults[number].end)
        self.allowed = sum(self._left)
        self.taken = [0] * len(faults)

    def take(self, at: float) -> bool:
        """Whether there is one left. That which is good for the shortest time is taken."""
        for number in self._soonest_over:
            fault = self._faults[number]
            if self._left[number] and fault.begin - self._before <= at <= fault.end + fault.aftermath:
                self._left[number] -= 1
                self.taken[number] += 1
                return True
        return False


def without_repetitions(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """A copy that the destination hands out again, and that came a moment ago, was not sent again."""
    seen: dict[str, float] = {}
    kept: list[Arrival] = []
    for arrival in arrivals:
        if not (arrival.is_again and arrival.at - seen.get(arrival.id, -inf) <= HANDED_OUT_AGAIN):
            kept.append(arrival)
        seen[arrival.id] = arrival.at
    return kept


def first_of_each(arrivals: Iterable[Arrival]) -> dict[str, Arrival]:
    """By id, in the order in which they came."""
    firsts: dict[str, Arrival] = {}
    for arrival in arrivals:
        firsts.setdefault(arrival.id, arrival)
    return firsts


def mixed_up(arrivals: Iterable[Arrival], committed: Mapping[str, Committed]) -> set[str]:
    """Those whose content, or key, is not their own."""
    return {
        arrival.id
        for arrival in arrivals
        if (message := committed.get(arrival.id)) and (arrival.key != message.key or arrival.said != message[:2])
    }


def overtaken(firsts: Mapping[str, Arrival], committed: Mapping[str, Committed]) -> list[str]:
    """Messages that came after a later one of their key. Two of one transaction have an order, too."""
    newest: dict[str, int] = {}
    late: list[str] = []
    for id in firsts:
        message = committed.get(id)
        if message is None or message.key is None or message.number is None:
            continue
        if message.number < newest.get(message.key, 0):
            late.append(id)
        newest[message.key] = max(newest.get(message.key, 0), message.number)
    return late


def gaps_in_sequences(
    firsts: Mapping[str, Arrival], committed: Mapping[str, Committed], dead: frozenset[str]
) -> list[str]:
    """Where a sequence was asked for: each must be the next one of its key, unless that is dead. Nobody deletes a
    counter here, so nobody may begin another generation."""
    numbers: dict[str, list[tuple[tuple[int, int], str]]] = defaultdict(list)
    for id, arrival in firsts.items():
        message = committed.get(id)
        if message is not None and message.key is not None and message.has_sequence:
            numbers[message.key].append((arrival.sequence or (0, 0), id))
    holes = Counter(committed[id].key for id in dead if id in committed)
    wrong: list[str] = []
    for key, sent in numbers.items():
        missing = last = 0
        generation = sent[0][0][0]
        for (its_generation, number), id in sent:
            if number <= last or its_generation != generation:
                wrong.append(id)
            missing += max(0, number - last - 1)
            last = max(last, number)
        if missing > holes[key]:
            wrong += [f"{missing} missing in {key}"]
    return wrong


def excess_of_stale(arrivals: Iterable[Arrival], history: History) -> list[str]:
    """Sent by a former owner after its successor has sent something of the same key. What was on its way when it lost
    its slots may arrive, soon after the fault is over, and no more of it than was under way."""
    excuses = Excuses([fault for fault in history.faults if fault.makes_stale], history.in_flight, 0.0)
    newest: dict[str, int] = {}
    wrong: list[str] = []
    for arrival in arrivals:
        if arrival.key is None:
            continue
        if arrival.epoch < newest.get(arrival.key, 0) and not excuses.take(arrival.at):
            wrong.append(arrival.id)
        newest[arrival.key] = max(newest.get(arrival.key, 0), arrival.epoch)
    return wrong


def explain_duplicates(
    arrivals: Iterable[Arrival], firsts: Mapping[str, Arrival], history: History
) -> tuple[Excuses, list[str]]:
    """A second copy means that nobody knew of the first when something broke: so the first came not long before that.
    When the second comes is another matter, as more may be broken meanwhile."""
    excuses = Excuses(history.faults, history.in_flight, UNSETTLED)
    copies = (arrival for arrival in arrivals if arrival is not firsts[arrival.id])
    return excuses, [copy.id for copy in copies if not excuses.take(firsts[copy.id].at)]


def largest_gap(arrivals: Sequence[Arrival], committed: Iterable[Committed]) -> tuple[float | None, float]:
    """When it began, and its seconds. A delivery that does not begin is one, too."""
    begin = min((message.at for message in committed), default=inf)
    times = [*([begin] if arrivals and begin < arrivals[0].at else []), *(arrival.at for arrival in arrivals)]
    gaps = ((later - earlier, earlier) for earlier, later in pairwise(times))
    seconds, began = max(gaps, default=(0.0, None))
    return began, seconds


class Trouble:
    """The time in which something was broken that may keep messages waiting: what overlaps counts once."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        hindering = (fault for fault in faults if fault.happened and fault.kind not in HARMLESS)
        self._begins, self._ends, self._before = list[float](), list[float](), list[float]()
        total = 0.0
        for begin, end in sorted((fault.begin, fault.end) for fault in hindering):
            if self._ends and begin <= self._ends[-1]:
                total += max(0.0, end - self._ends[-1])
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)
                self._before.append(total)
                total += end - begin

    def between(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, at: float) -> float:
        last = bisect_right(self._begins, at) - 1
        return self._before[last] + min(at, self._ends[last]) - self._begins[last] if last >= 0 else 0.0


def recovery(
    fault: Fault, faults: Iterable[Fault], firsts: Mapping[str, Arrival], committed: Mapping[str, Committed]
) -> float | None:
    if not fault.happened:
        return None
    waited_for = (arrival.at for id, arrival in firsts.items() if id in committed and committed[id].at <= fault.end)
    over = max(waited_for, default=fault.end)
    is_mixed = any(other is not fault and other.begin < over and other.end > fault.begin for other in faults)
    return None if is_mixed else max(0.0, over - fault.end)
