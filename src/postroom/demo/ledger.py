"""The reckoning: what was committed against what arrived. Pure, so that it can be shown to find what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Committed(NamedTuple):
    """A message of the shop's truth. `number` rises in the order of commits within its topic and key."""

    id: str
    topic: str
    key: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    committed: int
    delivered: int
    """Messages, each counted once."""
    lost: tuple[str, ...]
    """Committed, and nowhere: not delivered, not dead, not waiting in the outbox."""
    phantom: tuple[str, ...]
    """Delivered, dead or waiting, but never committed."""
    reordered: tuple[str, ...]
    """First delivered after one that was committed later in the same topic and key."""
    duplicates: int
    """Deliveries beyond the first."""
    dead: int
    pending: int
    """Committed, and still waiting in the outbox."""

    @property
    def is_kept(self) -> bool:
        """Whether what was promised held, and everything came to its end."""
        return not (self.lost or self.phantom or self.reordered or self.pending)


def reckon(
    committed: Collection[Committed], deliveries: Sequence[str], dead: Collection[str], waiting: Collection[str]
) -> Ledger:
    """`deliveries` are the ids that the destination accepted, in that order; `dead` and `waiting` are the outbox's."""
    truth = {message.id: message for message in committed}
    delivered = dict.fromkeys(deliveries)
    settled = {*delivered, *dead}
    seen = {*settled, *waiting}
    return Ledger(
        committed=len(truth),
        delivered=len(delivered),
        lost=tuple(id for id in truth if id not in seen),
        phantom=tuple(sorted(id for id in seen if id not in truth)),
        reordered=tuple(_overtaken(truth[id] for id in delivered if id in truth)),
        duplicates=len(deliveries) - len(delivered),
        dead=len(set(dead)),
        pending=len({id for id in waiting if id in truth} - settled),
    )


def _overtaken(first_deliveries: Iterable[Committed]) -> Iterable[str]:
    highest: dict[tuple[str, str], int] = {}
    for message in first_deliveries:
        before = highest.get((message.topic, message.key), 0)
        if message.number < before:
            yield message.id
        else:
            highest[message.topic, message.key] = message.number
