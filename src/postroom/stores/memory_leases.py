"""Who owns which slot, which relays there are, and whose turn it is to probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from ..ports import Beat, Lease, Leases
from .memory_rows import BreakerRow, LeaseRow, RelayRow
from .memory_tables import Tables


def renew(tables: Tables, beat: Beat) -> Leases:
    now = tables.now()
    until = now + timedelta(seconds=beat.ttl)
    known = tables.relays.get(beat.relay)
    tables.relays[beat.relay] = RelayRow(
        beat=beat, started_at=known.started_at if known else now, seen_at=now, until=until
    )
    for lease in _still_ours(tables, beat.relay, beat.epochs, beat.marks):
        lease.expires_at = until
    return Leases(
        relays=sorted(name for name, relay in tables.relays.items() if relay.until > now),
        slots={slot: _read_lease(tables, slot) for slot in tables.leases},
    )


def acquire(tables: Tables, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
    now = tables.now()
    taken: dict[int, Lease] = {}
    for slot in slots:
        lease = tables.leases[slot]
        is_kept = lease.owner is None and lease.kept_for in (None, relay)
        if lease.expires_at is None or lease.expires_at <= now or is_kept:
            tables.last_epoch += 1
            lease.owner, lease.epoch, lease.expires_at = relay, tables.last_epoch, now + timedelta(seconds=ttl)
            lease.kept_for = None
            taken[slot] = replace(_read_lease(tables, slot), notes=lease.notes)
    return taken


def release(tables: Tables, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool) -> None:
    for lease in _still_ours(tables, relay, epochs, marks):
        lease.owner = lease.expires_at = None
    if leave:
        tables.relays.pop(relay, None)


def hand_over(tables: Tables, relay: str, slot: int, epoch: int, mark: int, to: str, ttl: float) -> bool:
    for lease in _still_ours(tables, relay, {slot: epoch}, {slot: mark}):
        lease.owner, lease.kept_for = None, to
        lease.expires_at = tables.now() + timedelta(seconds=ttl)
        return True
    return False


def who_knows(tables: Tables, task: str | None) -> list[str]:
    known = {name: row.beat.tasks for name, row in sorted(tables.relays.items()) if row.until > tables.now()}
    return [name for name, tasks in known.items() if (task in tasks if task is not None else any(tasks))]


def write_notes(
    tables: Tables, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
) -> frozenset[int]:
    refused = set(notes)
    for slot, text in notes.items():
        lease = tables.leases[slot]
        if (lease.owner, lease.epoch) == (relay, epochs.get(slot)):
            lease.notes = text
            refused.remove(slot)
    return frozenset(refused)


def _still_ours(tables: Tables, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int]) -> Iterator[LeaseRow]:
    for slot, epoch in epochs.items():
        lease = tables.leases[slot]
        if (lease.owner, lease.epoch) == (relay, epoch):
            lease.mark = marks.get(slot, lease.mark)
            yield lease


def _read_lease(tables: Tables, slot: int) -> Lease:
    lease = tables.leases[slot]
    expires_in = (lease.expires_at - tables.now()).total_seconds() if lease.expires_at else 0.0
    return Lease(
        slot=slot,
        owner=lease.owner,
        epoch=lease.epoch,
        expires_in=expires_in,
        mark=lease.mark,
        kept_for=lease.kept_for,
    )


# --- breakers: whose turn it is to probe, and good news


def take_probe(tables: Tables, destination: str, relay: str, ttl: float) -> bool:
    now, breaker = tables.now(), tables.breakers[destination]
    if breaker.probe_until is not None and breaker.probe_until > now and breaker.probe_by != relay:
        return False
    breaker.probe_by, breaker.probe_until = relay, now + timedelta(seconds=ttl)
    return True


def report_trip(tables: Tables, destination: str, relay: str, error: str) -> None:
    breaker = tables.breakers[destination]
    breaker.tripped_at, breaker.tripped_by, breaker.error = tables.now(), relay, error


def report_success(tables: Tables, destination: str) -> None:
    tables.breakers[destination] = BreakerRow(successes=tables.breakers[destination].successes + 1)


def successes(tables: Tables) -> Mapping[str, int]:
    return {destination: breaker.successes for destination, breaker in tables.breakers.items()}
