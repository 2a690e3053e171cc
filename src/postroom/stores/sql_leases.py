"""Who owns which slot, who is alive, and whose turn it is to probe: one function per transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    SmallInteger,
    Update,
    bindparam,
    case,
    delete,
    insert,
    literal,
    or_,
    select,
    update,
)

from ..ports import Beat, Lease, Leases
from .sql_transaction import LONGEST_ERROR, Transaction


def renew(transaction: Transaction, beat: Beat) -> Leases:
    register(transaction, beat)
    _update_ours(transaction, beat.relay, beat.epochs, beat.marks, expires_at=transaction.after(beat.ttl))
    leases = transaction.tables.leases
    return Leases(
        relays=live_relays(transaction),
        slots={row.slot: _read_lease(transaction, row) for row in transaction.rows(select(leases))},
    )


def acquire(transaction: Transaction, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
    free = [row for row in lock_leases(transaction, slots) if _is_free(transaction, row, relay)]
    if not free:
        return {}
    first = next_epochs(transaction, len(free))
    until = transaction.after(ttl)
    taken = {
        row.slot: Lease(
            slot=row.slot, owner=relay, epoch=first + number, expires_in=ttl, mark=row.mark, notes=row.notes
        )
        for number, row in enumerate(free)
    }
    leases = transaction.tables.leases
    transaction.run(
        update(leases)
        .where(leases.c.slot == bindparam("the_slot", type_=SmallInteger))
        .values(owner=relay, epoch=bindparam("new_epoch", type_=BigInteger), expires_at=until, kept_for=None),
        [{"the_slot": slot, "new_epoch": lease.epoch} for slot, lease in taken.items()],
    )
    return taken


def release(
    transaction: Transaction, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool
) -> None:
    _update_ours(transaction, relay, epochs, marks, owner=None, expires_at=None)
    if leave:
        relays = transaction.tables.relays
        transaction.run(delete(relays).where(relays.c.id == relay))


def hand_over(transaction: Transaction, relay: str, slot: int, epoch: int, mark: int, to: str, ttl: float) -> bool:
    leases = transaction.tables.leases
    ours = update(leases).where(leases.c.slot == slot, leases.c.owner == relay, leases.c.epoch == epoch)
    kept = {"owner": None, "expires_at": transaction.after(ttl), "kept_for": to, "mark": mark}
    return transaction.changed(ours.values(kept)) == 1


def who_knows(transaction: Transaction, task: str | None) -> list[str]:
    relays = transaction.tables.relays
    alive = select(relays.c.id, relays.c.tasks).where(relays.c.until > transaction.now).order_by(relays.c.id)
    known = {row.id: json.loads(row.tasks or "[]") for row in transaction.rows(alive)}
    return [relay for relay, tasks in known.items() if (task in tasks if task is not None else any(tasks))]


def text_of(tasks: frozenset[str]) -> str | None:
    return json.dumps(sorted(tasks)) if tasks else None


def write_notes(
    transaction: Transaction, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
) -> frozenset[int]:
    leases = transaction.tables.leases
    ours = {
        row.slot
        for row in lock_leases(transaction, sorted(notes))
        if (row.owner, row.epoch) == (relay, epochs.get(row.slot))
    }
    if ours:
        transaction.run(
            update(leases)
            .where(leases.c.slot == bindparam("the_slot", type_=SmallInteger))
            .values(notes=bindparam("text", type_=leases.c.notes.type)),
            [{"the_slot": slot, "text": notes[slot]} for slot in sorted(ours)],
        )
    return frozenset(notes.keys() - ours)


def lock_leases(transaction: Transaction, slots: Sequence[int]) -> Sequence[Any]:
    """The lease rows, locked in one order so that nobody waits for each other, until the transaction ends."""
    leases = transaction.tables.leases
    chosen = select(leases).where(transaction.among(leases.c.slot, slots))
    return transaction.rows(chosen.order_by(leases.c.slot).with_for_update())


def live_relays(transaction: Transaction) -> list[str]:
    relays = transaction.tables.relays
    alive = select(relays.c.id).where(relays.c.until > transaction.now).order_by(relays.c.id)
    return list(transaction.run(alive).scalars())


def register(transaction: Transaction, beat: Beat) -> None:
    relays = transaction.tables.relays
    values = {
        "host": beat.host,
        "pid": beat.pid,
        "seen_at": transaction.now,
        "until": transaction.after(beat.ttl),
        "in_flight": beat.in_flight,
        "woken_by": beat.woken_by,
        "tasks": text_of(beat.tasks),
    }
    if not transaction.changed(update(relays).where(relays.c.id == beat.relay).values(values)):
        transaction.run(insert(relays).values(id=beat.relay, started_at=transaction.now, **values))


def _update_ours(
    transaction: Transaction, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], **values: Any
) -> None:
    """An epoch belongs to one slot, so that two statements do for all of them: one for those that have got on."""
    leases = transaction.tables.leases
    moved = {slot: marks[slot] for slot in sorted(epochs) if slot in marks}
    rest = [epoch for slot, epoch in epochs.items() if slot not in moved]
    if moved:
        ours = _ours(transaction, relay, [epochs[slot] for slot in moved])
        new_marks = {slot: literal(mark, BigInteger) for slot, mark in moved.items()}
        transaction.run(ours.values(mark=case(new_marks, value=leases.c.slot, else_=leases.c.mark), **values))
    if rest:
        transaction.run(_ours(transaction, relay, rest).values(values))


def _ours(transaction: Transaction, relay: str, epochs: Sequence[int]) -> Update:
    leases = transaction.tables.leases
    return update(leases).where(leases.c.owner == relay, transaction.among(leases.c.epoch, epochs))


def _is_free(transaction: Transaction, row: Any, relay: str) -> bool:
    if row.expires_at is None or row.expires_at <= transaction.now:
        return True
    return row.owner is None and row.kept_for in (None, relay)


def next_epochs(transaction: Transaction, count: int) -> int:
    """The first of `count` numbers that were never used before."""
    meta = transaction.tables.meta
    is_counter = meta.c.name == "epoch"
    last = int(transaction.run(select(meta.c.value).where(is_counter).with_for_update()).scalars().one())
    transaction.run(update(meta).where(is_counter).values(value=str(last + count)))
    return last + 1


def _read_lease(transaction: Transaction, row: Any) -> Lease:
    expires_in = transaction.seconds_until(row.expires_at) if row.expires_at else 0.0
    return Lease(
        slot=row.slot, owner=row.owner, epoch=row.epoch, expires_in=expires_in, mark=row.mark, kept_for=row.kept_for
    )


# --- breakers: whose turn it is to probe, and good news


def take_probe(transaction: Transaction, destination: str, relay: str, ttl: float) -> bool:
    breakers = transaction.tables.breakers
    is_free = or_(
        breakers.c.probe_until.is_(None), breakers.c.probe_until <= transaction.now, breakers.c.probe_by == relay
    )
    turn = _change_breaker(transaction, destination).where(is_free)
    return transaction.changed(turn.values(probe_by=relay, probe_until=transaction.after(ttl))) == 1


def report_trip(transaction: Transaction, destination: str, relay: str, error: str) -> None:
    trip = _change_breaker(transaction, destination)
    transaction.run(trip.values(tripped_at=transaction.now, tripped_by=relay, error=error[:LONGEST_ERROR]))


def report_success(transaction: Transaction, destination: str) -> None:
    cleared = dict.fromkeys(("probe_by", "probe_until", "tripped_at", "tripped_by", "error"))
    success = _change_breaker(transaction, destination)
    transaction.run(success.values(successes=transaction.tables.breakers.c.successes + 1, **cleared))


def successes(transaction: Transaction) -> Mapping[str, int]:
    breakers = transaction.tables.breakers
    return {row.destination: row.successes for row in transaction.rows(select(breakers))}


def _change_breaker(transaction: Transaction, destination: str) -> Update:
    breakers = transaction.tables.breakers
    transaction.run(transaction.dialect.insert_missing(breakers).values(destination=destination, successes=0))
    return update(breakers).where(breakers.c.destination == destination)
