"""Which fault strikes at which call, drawn from a seed. Pure: it does nothing itself."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Literal, cast, get_args

from ..errors import ConfigurationError

Kind = Literal[
    "crash_after_publish",
    "crash_after_answer",
    "crash_before_settle",
    "crash_after_settle",
    "lease_lost",
    "partial_answers",
    "database_restart",
    "slow_destination",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

STORE_CALLS = frozenset({"renew", "acquire", "release", "fetch", "fetch_heads", "fetch_parked", "settle", "due"})
"""What a relay asks of its store while it delivers."""


def strikes_at(kind: Kind, call: str) -> bool:
    if kind == "database_restart":
        return call in STORE_CALLS
    return call == ("settle" if kind.endswith("settle") else "publish")


class Schedule:
    """Each kind of call has dice of its own, so the n-th publish meets the same fault however the calls interleave.

    `rate` is how many publish and settle calls of a hundred meet one, divided by a hundred; other calls of the store
    are more frequent and meet fewer. After `most` faults all is well.
    """

    def __init__(self, seed: int, kinds: Collection[str], rate: float, most: int) -> None:
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise ConfigurationError(f"no such fault: {', '.join(sorted(unknown))}; known are {', '.join(KINDS)}")
        self.seed = seed
        self._kinds = cast("list[Kind]", sorted(kinds))
        self._rate = rate
        self._left = most
        self._dice: dict[str, Random] = {}

    def dice(self, call: str) -> Random:
        return self._dice.setdefault(call, Random(f"{self.seed} {call}"))

    def draw(self, call: str) -> Kind | None:
        """The fault that this call meets, if any."""
        kinds: list[Kind] = [kind for kind in self._kinds if strikes_at(kind, call)]
        rate = self._rate if call in ("publish", "settle") else self._rate / 10
        dice = self.dice(call)
        strikes, chosen = dice.random() < rate, dice.choice(kinds) if kinds else None
        if not strikes or chosen is None or self._left <= 0:
            return None
        self._left -= 1
        return chosen
