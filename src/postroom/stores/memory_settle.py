"""One settlement: what a relay reports about the messages it fetched, written down in one go."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ..message import REVIVED_HEADER, Message
from ..ports import Dead, Gate, Refund, Retry, Settled, Settlement
from .memory_rows import Row
from .memory_tables import Tables


def settle(tables: Tables, settlement: Settlement) -> Settled:
    refused: set[int] = set()

    def ours(slot: int) -> bool:
        lease = tables.leases[slot]
        if (lease.owner, lease.epoch) == (settlement.relay, settlement.epochs.get(slot)):
            return True
        refused.add(slot)
        return False

    # First what is parked: whether a hold goes or becomes `releasing` depends on it.
    for gate, message in settlement.parked:
        if ours(gate.slot):
            _park(tables, gate, message.position)
    for message in settlement.delivered:
        _deliver(tables, message, settlement.retention)
    for message in settlement.superseded:
        if ours(message.slot):
            _supersede(tables, message)
    # Of several messages of one key the earliest is to hold it.
    held: set[Gate] = set()
    for retry in sorted(settlement.retries, key=_position_of):
        if ours(retry.message.slot):
            _retry(tables, retry, held)
    held.clear()
    for dead in sorted(settlement.dead, key=_position_of):
        if ours(dead.message.slot):
            _bury(tables, dead, held)
    for refund in settlement.refunds:
        if ours(refund.message.slot):
            _refund(tables, refund)
    for gate, _ in settlement.parked:
        if ours(gate.slot):
            _hold_parked(tables, gate)
    still_parked = {gate for gate in settlement.released if ours(gate.slot) and not tables.drop(gate)}
    return Settled(frozenset(refused), frozenset(still_parked))


def _park(tables: Tables, gate: Gate, position: int) -> None:
    row = tables.take_waiting(position)
    if row is not None:
        tables.parked.put(replace(row, gate=gate))


def _hold_parked(tables: Tables, gate: Gate) -> None:
    """A former owner may have delivered the head meanwhile. Without a hold the next owner would not look here."""
    first = next(tables.parked.read(gate), None)
    if gate.key is not None and gate not in tables.holds and first is not None:
        tables.hold(first, "releasing", None, "")


def _deliver(tables: Tables, message: Message, retention: float | None) -> None:
    position = message.position
    # In later it is if a former owner delivers what its successor put off.
    row = tables.take_waiting(position) or tables.dead.take(position) or tables.later.take(position)
    if row is not None and retention is not None:
        tables.keep(Row(message=row.message, attempts=row.attempts), "delivered")
    tables.let_go(message)


def _supersede(tables: Tables, message: Message) -> None:
    row = tables.take_waiting(message.position)
    if row is not None:
        tables.keep(row, "superseded")
        tables.let_go(message)


def _retry(tables: Tables, retry: Retry, held: set[Gate]) -> None:
    due_at = tables.now() + timedelta(seconds=retry.delay)
    if retry.message.key is None:
        row = tables.take_waiting(retry.message.position)
        if row is not None:
            tables.later.put(replace(row, attempts=retry.attempts, due_at=due_at, error=retry.error, gate=None))
    else:
        row = tables.find_waiting(retry.message.position)
        if row is not None:
            row.attempts = retry.attempts
            if row.key_gate not in held:
                held.add(row.key_gate)
                tables.hold(row, "retry", due_at, retry.error)


def _bury(tables: Tables, dead: Dead, held: set[Gate]) -> None:
    row = tables.take_waiting(dead.message.position)
    if row is None:
        return
    now = tables.now()
    revive_at = None if dead.revive_after is None else now + timedelta(seconds=dead.revive_after)
    row = replace(
        row,
        attempts=dead.attempts,
        reason=dead.reason,
        error=dead.error,
        settled_at=now,
        due_at=revive_at,
        gate=None,
    )
    tables.dead.put(row)
    if dead.holding and row.message.key is not None:
        if row.key_gate not in held:
            held.add(row.key_gate)
            tables.hold(row, "dead", revive_at, dead.error)
    else:
        tables.let_go(row.message)


def _refund(tables: Tables, refund: Refund) -> None:
    position = refund.message.position
    if row := tables.later.take(position):
        tables.later.put(replace(row, attempts=refund.attempts, due_at=tables.now()))
    elif row := tables.dead.take(position):
        _refund_dead(tables, Row(message=row.message, attempts=refund.attempts))
    elif row := tables.find_waiting(position):
        row.attempts = refund.attempts
        _refund_hold(tables, row)


def _refund_dead(tables: Tables, row: Row) -> None:
    if row.message.key is None:
        tables.append(row)
    elif _refund_hold(tables, row):
        # The reader's mark may have passed its position: only among the parked rows is it found there.
        tables.parked.put(replace(row, gate=row.key_gate))
    else:
        headers = {**row.message.headers, REVIVED_HEADER: "1"}
        tables.append(replace(row, message=replace(row.message, headers=headers)))


def _refund_hold(tables: Tables, row: Row) -> bool:
    if not tables.is_blocked_by(row.message):
        return False
    tables.hold(row, "retry", tables.now(), tables.holds[row.key_gate].error)
    return True


def _position_of(entry: Retry | Dead) -> int:
    return entry.message.position
