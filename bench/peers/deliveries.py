"""What became of messages: judged by what was written, what arrived and what is left. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

Identity = tuple[str, int]
"""Key and number. The numbers of a key are given in the order of its writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    key: str
    number: int
    at: float

    @property
    def identity(self) -> Identity:
        return self.key, self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    written: int
    delivered: int
    dead: int
    pending: int
    """In the database, and neither delivered nor dead."""
    lost: int
    """Neither delivered nor in the database."""
    duplicates: int
    reordered_keys: int
    """Of which a message arrived first after a later one."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_log(text: str) -> list[Delivery]:
    """Lines of key, number and time. A process that was killed may have left the last one without its end."""
    whole = text[: text.rfind("\n") + 1]
    return [
        Delivery(key=key, number=int(number), at=float(at))
        for key, number, at in (line.split(" ") for line in whole.splitlines())
    ]


def judge(written: Iterable[Identity], deliveries: Sequence[Delivery], left: Iterable[tuple[Identity, str]]) -> Verdict:
    expected, arrived = set(written), Counter(each.identity for each in deliveries)
    states = dict(left)
    missing = expected - arrived.keys()
    dead = {identity for identity in missing if states.get(identity) == "dead"}
    pending = {identity for identity in missing - dead if identity in states}
    return Verdict(
        written=len(expected),
        delivered=len(expected & arrived.keys()),
        dead=len(dead),
        pending=len(pending),
        lost=len(missing - dead - pending),
        duplicates=arrived.total() - len(arrived),
        reordered_keys=len(reordered_keys(deliveries)),
    )


def reordered_keys(deliveries: Iterable[Delivery]) -> set[str]:
    seen, latest, reordered = set[Identity](), dict[str, int](), set[str]()
    for each in deliveries:
        if each.identity in seen:
            continue
        seen.add(each.identity)
        if each.number < latest.get(each.key, -1):
            reordered.add(each.key)
        latest[each.key] = max(each.number, latest.get(each.key, -1))
    return reordered


def silence(deliveries: Sequence[Delivery]) -> float:
    """The longest time in seconds between two that follow each other."""
    gaps = (later.at - earlier.at for earlier, later in pairwise(deliveries))
    return round(max(gaps, default=0.0), 1)
