"""Everything there is to say after the play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .ledger import Ledger
from .plan import Plan
from .stage import Happenings
from .witness import Account, Witness

SHOWN_IDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    plan: Plan
    happenings: Happenings
    ledger: Ledger
    account: Account
    never_happened: int
    """Messages that were added in transactions and savepoints that were never committed."""
    committed_in_outage: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.ledger.is_kept and self.happenings.in_time

    def as_json(self) -> dict[str, Any]:
        ledger, happenings = self.ledger, self.happenings
        return {
            "committed": ledger.committed,
            "delivered": ledger.delivered,
            "lost": len(ledger.lost),
            "phantom": len(ledger.phantom),
            "reordered": len(ledger.reordered),
            "duplicates": ledger.duplicates,
            "dead": ledger.dead,
            "seed": self.plan.seed,
            "pending": ledger.pending,
            "retried": self.account.retried,
            "refusals": len(self.account.refused),
            "rolled_back_transactions": happenings.rolled_back,
            "rolled_back_savepoints": happenings.savepoints_rolled_back,
            "killed_writers": happenings.killed_writers,
            "killed_relays": int(happenings.killed_relay is not None),
            "delivered_by": dict(sorted(self.account.by_relay.items())),
            "outage_seconds": round(happenings.outage_seconds, 1),
            "committed_during_outage": self.committed_in_outage,
            "added_but_never_committed": self.never_happened,
            "in_time": happenings.in_time,
            "seconds": round(self.seconds, 1),
            "examples": {
                "lost": ledger.lost[:SHOWN_IDS],
                "phantom": ledger.phantom[:SHOWN_IDS],
                "reordered": ledger.reordered[:SHOWN_IDS],
            },
        }


def outcome_of(plan: Plan, happenings: Happenings, witness: Witness, seconds: float) -> Outcome:
    ledger = witness.reckon()
    return Outcome(
        plan=plan,
        happenings=happenings,
        ledger=ledger,
        account=witness.account,
        never_happened=len(happenings.said - witness.committed_ids()),
        committed_in_outage=witness.committed_between(happenings.down_at, happenings.up_at),
        seconds=seconds,
    )
