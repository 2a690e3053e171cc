"""A relay's renewal in one statement: what an idle relay sends most often but for its glances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Float,
    SmallInteger,
    bindparam,
    cast,
    column,
    extract,
    func,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert

from ..ports import Beat, Lease, Leases
from .schema import Moment, Tables, db_now
from .sql_leases import text_of


def renewal(tables: Tables, clocked: bool) -> CompoundSelect[*tuple[Any, ...]]:
    """Register the relay, renew its leases, and select all leases and the other relays that live.

    A statement sees everything as it was before it: which leases were renewed comes from the update itself.
    """
    leases, relays = tables.leases, tables.relays
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    until = now + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("ttl", type_=Float))
    registered = _register(tables, now, until).cte("registered")
    renewed = _renew(tables, until).cte("renewed")
    is_ours = leases.c.slot.in_(select(renewed.c.slot))
    left = cast(extract("epoch", leases.c.expires_at - now), Float)
    return union_all(
        select(leases.c.slot, leases.c.owner, leases.c.epoch, left, leases.c.mark, leases.c.kept_for, is_ours),
        select(
            _none(SmallInteger), relays.c.id, *(_none(kind) for kind in (BigInteger, Float, BigInteger)), null(), null()
        )
        .where(relays.c.until > now)
        .add_cte(registered),
    )


def _none(kind: Any) -> ColumnElement[Any]:
    return cast(null(), kind)


def _register(tables: Tables, now: ColumnElement[Any], until: ColumnElement[Any]) -> Any:
    relays = tables.relays
    names = ("host", "pid", "in_flight", "woken_by", "tasks")
    values = {name: bindparam(name, type_=relays.c[name].type) for name in names}
    row = insert(relays).values(id=bindparam("relay"), started_at=now, seen_at=now, until=until, **values)
    changed = {name: row.excluded[name] for name in (*names, "seen_at", "until")}
    return row.on_conflict_do_update(index_elements=[relays.c.id], set_=changed).returning(relays.c.id)


def _renew(tables: Tables, until: ColumnElement[Any]) -> Any:
    """Locked in one order, as everybody does it."""
    leases = tables.leases
    given = (
        func.unnest(_array("slots", SmallInteger), _array("epochs", BigInteger), _array("marks", BigInteger))
        .table_valued(column("slot", SmallInteger), column("epoch", BigInteger), column("mark", BigInteger))
        .render_derived("given")
    )
    locked = (
        select(leases.c.slot, given.c.mark)
        .join(given, (leases.c.slot == given.c.slot) & (leases.c.epoch == given.c.epoch))
        .where(leases.c.owner == bindparam("relay"))
        .order_by(leases.c.slot)
        .with_for_update(of=leases)
        .cte("locked")
    )
    renewed = update(leases).where(leases.c.slot == locked.c.slot)
    marked = func.coalesce(locked.c.mark, leases.c.mark)
    return renewed.values(expires_at=until, mark=marked).returning(leases.c.slot)


def _array(name: str, kind: Any) -> ColumnElement[Any]:
    return bindparam(name, type_=ARRAY(kind))


def values_of(beat: Beat) -> dict[str, Any]:
    slots = list(beat.epochs)
    return {
        "relay": beat.relay,
        "host": beat.host,
        "pid": beat.pid,
        "in_flight": beat.in_flight,
        "woken_by": beat.woken_by,
        "tasks": text_of(beat.tasks),
        "ttl": beat.ttl,
        "slots": slots,
        "epochs": list(beat.epochs.values()),
        "marks": [beat.marks.get(slot) for slot in slots],
    }


def read_renewal(beat: Beat, rows: Sequence[Sequence[Any]]) -> Leases:
    slots = {row[0]: _lease(beat, *row) for row in rows if row[0] is not None}
    return Leases(relays=sorted({beat.relay, *(row[1] for row in rows if row[0] is None)}), slots=slots)


def _lease(
    beat: Beat,
    slot: int,
    owner: str | None,
    epoch: int,
    left: float | None,
    mark: int,
    kept_for: str | None,
    ours: bool,
) -> Lease:
    if ours:
        return Lease(slot=slot, owner=beat.relay, epoch=epoch, expires_in=beat.ttl, mark=beat.marks.get(slot, mark))
    return Lease(slot=slot, owner=owner, epoch=epoch, expires_in=left or 0.0, mark=mark, kept_for=kept_for)
