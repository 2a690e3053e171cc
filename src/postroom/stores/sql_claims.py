"""Rows claimed one by one (`claim="rows"`): one function per transaction.

A row that is claimed has left the hot table for `claims`, where `token` says whose it is and `until` how long. From
then on anybody may take it over. So giving a row back, or keeping it from everybody for a while, is an update; no row
ever returns to the hot table, at a place where a reader would have to look again.

The token is a relay's id or, for a row behind a closed topic, the name of that gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import md5
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Table, delete, select, true, update

from ..message import SLOTS, Message
from ..ports import Beat, Fetched, Gate, Settlement
from .sql_leases import live_relays, register
from .sql_rows import message_columns, read_message
from .sql_settle import (
    archive,
    deliver_later,
    finish,
    finish_dead,
    grave,
    is_dead,
    move_each,
    positions_of,
    put_off,
    refund_unkeyed,
)
from .sql_transaction import Transaction

PARKED_FOR = 60.0
"""Seconds until a row behind a closed topic may be taken by a relay that does not know of it."""
GATE = "/"
"""What the token of a gate begins with, and no relay's does."""


class Claim(NamedTuple):
    token: str
    ttl: float


class Wanted(NamedTuple):
    """At most `limit` rows of the slots with a position above `after`."""

    slots: Sequence[int]
    limit: int
    after: int = 0


def token_of(gate: Gate) -> str:
    return f"{GATE}{gate.slot}/{md5(gate.topic.encode(), usedforsecurity=False).hexdigest()}"


# --- taking


def take_hot(transaction: Transaction, claim: Claim, wanted: Wanted) -> list[Message]:
    """The first rows that nobody else is taking."""
    hot, claims = transaction.tables.hot, transaction.tables.claims
    first = select(*message_columns(hot)).where(hot.c.position > wanted.after).order_by(hot.c.position)
    first = first.where(*_in_slots(transaction, hot, wanted.slots)).limit(wanted.limit)
    # By another index it would lock, and so hide from others, all rows of the slots before it sorts them.
    for name in ("mysql", "mariadb"):
        first = first.with_hint(hot, "FORCE INDEX (PRIMARY)", name)
    rows = transaction.rows(first.with_for_update(skip_locked=True))
    positions = [row.position for row in rows]
    if rows:
        given = {"position": hot.c.position, "token": claim.token, "until": transaction.after(claim.ttl)}
        transaction.copy(hot, claims, transaction.among(hot.c.position, positions), given)
        transaction.remove_at(hot.c.position, positions)
    return [read_message(row) for row in rows]


def take_expired(
    transaction: Transaction, claim: Claim, slots: Sequence[int], limit: int, since: datetime | None
) -> Fetched:
    """Rows whose claims have run out since then."""
    claims = transaction.tables.claims
    expired = select(*message_columns(claims)).where(*_has_expired(transaction, since))
    expired = expired.where(*_in_slots(transaction, claims, slots)).order_by(claims.c.until)
    return Fetched(_take_over(transaction, claim, expired.limit(limit)), 0, transaction.now)


def take_parked(transaction: Transaction, claim: Claim, gate: Gate, limit: int) -> list[Message]:
    claims = transaction.tables.claims
    parked = select(*message_columns(claims)).where(claims.c.token == token_of(gate))
    return _take_over(transaction, claim, parked.limit(limit))


def _take_over(transaction: Transaction, claim: Claim, chosen: Select[*tuple[Any, ...]]) -> list[Message]:
    messages = [read_message(row) for row in transaction.rows(chosen.with_for_update(skip_locked=True))]
    _hand_over(transaction, positions_of(messages), claim)
    return sorted(messages, key=lambda message: message.position)


def _hand_over(transaction: Transaction, positions: Sequence[int], claim: Claim) -> None:
    claims = transaction.tables.claims
    if positions:
        taken = update(claims).where(transaction.among(claims.c.position, positions))
        transaction.run(taken.values(token=claim.token, until=transaction.after(claim.ttl)))


def _in_slots(transaction: Transaction, table: Table, slots: Sequence[int]) -> list[ColumnElement[bool]]:
    return [] if len(slots) >= SLOTS else [transaction.among(table.c.slot, slots)]


# --- keeping and giving back


def renew(transaction: Transaction, beat: Beat, positions: Sequence[int]) -> tuple[list[str], set[int]]:
    """Register the relay; its rows at these positions are its own for another `ttl`. Who is alive, and which rows
    nobody has taken."""
    register(transaction, beat)
    kept = extend(transaction, Claim(beat.relay, beat.ttl), positions)
    return live_relays(transaction), kept


def extend(transaction: Transaction, claim: Claim, positions: Sequence[int]) -> set[int]:
    kept = _lock_ours(transaction, claim.token, positions)
    _hand_over(transaction, sorted(kept), claim)
    return kept


def give_back(transaction: Transaction, token: str, slots: Sequence[int], leave: bool) -> None:
    claims, relays = transaction.tables.claims, transaction.tables.relays
    ours = update(claims).where(claims.c.token == token, transaction.among(claims.c.slot, slots))
    if slots:
        transaction.run(ours.values(until=transaction.now))
    if leave:
        transaction.run(delete(relays).where(relays.c.id == token))


# --- looking


def has_expired(transaction: Transaction, since: datetime | None) -> bool:
    return transaction.has(transaction.tables.claims, *_has_expired(transaction, since))


def _has_expired(transaction: Transaction, since: datetime | None) -> list[ColumnElement[bool]]:
    until = transaction.tables.claims.c.until
    return [until <= transaction.now] if since is None else [until <= transaction.now, until > since]


def gates(transaction: Transaction, slots: Sequence[int]) -> list[Gate]:
    claims = transaction.tables.claims
    closed = select(claims.c.slot, claims.c.topic).distinct()
    closed = closed.where(claims.c.token.startswith(GATE), transaction.among(claims.c.slot, slots))
    return [Gate(row.slot, row.topic, None) for row in transaction.rows(closed)]


def is_claimed_elsewhere(transaction: Transaction, token: str) -> bool:
    claims = transaction.tables.claims
    return transaction.has(claims, claims.c.token != token, ~claims.c.token.startswith(GATE))


# --- settling


def delete_claims(transaction: Transaction, positions: Sequence[int]) -> int:
    claims = transaction.tables.claims
    return transaction.remove_at(claims.c.position, positions)


def settle(transaction: Transaction, settlement: Settlement) -> None:
    ours = _lock(transaction, settlement)
    dead = [entry._replace(holding=False) for entry in settlement.dead if entry.message.position in ours]
    _deliver(transaction, settlement.delivered, settlement.retention)
    _supersede(transaction, [message for message in settlement.superseded if message.position in ours])
    _park(transaction, [(gate, message) for gate, message in settlement.parked if message.position in ours])
    here, graves = (transaction.tables.claims,), [grave(transaction, entry) for entry in dead]
    put_off(transaction, here, [retry for retry in settlement.retries if retry.message.position in ours])
    move_each(transaction, here, transaction.tables.dead, graves, died_at=transaction.now)
    for refund in settlement.refunds:
        refund_unkeyed(transaction, refund)


def _lock(transaction: Transaction, settlement: Settlement) -> set[int]:
    """Every row that is concerned, so that of two relays one is first; which of them are ours."""
    fenced = [entry.message for entry in (*settlement.retries, *settlement.dead)]
    fenced += [*settlement.superseded, *(message for _, message in settlement.parked)]
    claims = transaction.tables.claims
    concerned = transaction.lock_at(claims.c.position, positions_of([*fenced, *settlement.delivered]))
    there = select(claims.c.position, claims.c.token).where(transaction.among(claims.c.position, concerned))
    tokens = {row.position: row.token for row in transaction.rows(there)}
    missing = [message for message in settlement.delivered if message.position not in tokens]
    _lock_dead(transaction, [*missing, *(refund.message for refund in settlement.refunds)])
    return {position for position, token in tokens.items() if token == settlement.relay}


def _lock_dead(transaction: Transaction, messages: Sequence[Message]) -> None:
    dead = transaction.tables.dead
    if messages:
        buried = select(dead.c.number).where(is_dead(transaction, messages)).order_by(dead.c.number)
        transaction.run(buried.with_for_update())


def _lock_ours(transaction: Transaction, token: str, positions: Sequence[int]) -> set[int]:
    claims = transaction.tables.claims
    if not positions:
        return set()
    there = transaction.lock_at(claims.c.position, positions)
    ours = select(claims.c.position).where(claims.c.token == token, transaction.among(claims.c.position, there))
    return set(transaction.run(ours).scalars())


def _deliver(transaction: Transaction, messages: Sequence[Message], retention: float | None) -> None:
    """Most rows are where they were claimed. The others are looked for only when some are missing."""
    claims = transaction.tables.claims
    left = len(messages) - finish(transaction, claims, messages, retention) if messages else 0
    if left:
        left -= finish_dead(transaction, messages, retention)
    if left:
        deliver_later(transaction, messages, retention)


def _supersede(transaction: Transaction, messages: Sequence[Message]) -> None:
    claims = transaction.tables.claims
    here = transaction.among(claims.c.position, positions_of(messages))
    if messages:
        archive(transaction, claims, here, "superseded", position=claims.c.position)
        transaction.remove_at(claims.c.position, positions_of(messages))


def _park(transaction: Transaction, parked: Iterable[tuple[Gate, Message]]) -> None:
    behind: dict[Gate, list[int]] = {}
    for gate, message in parked:
        behind.setdefault(gate, []).append(message.position)
    for gate, positions in behind.items():
        _hand_over(transaction, positions, Claim(token_of(gate), PARKED_FOR))


# --- another way of claiming


def change_over(transaction: Transaction, claim: str) -> None:
    """All relays are stopped, and the next ones will claim differently: nothing may stay where they do not look."""
    tables = transaction.tables
    transaction.run(update(tables.leases).values(mark=0))  # what is put back may lie below
    if claim != "rows":
        _return_all(transaction, tables.claims)
    else:
        _return_all(transaction, tables.parked)
        transaction.run(delete(tables.holds))
        transaction.run(update(tables.dead).where(tables.dead.c.holding).values(holding=False))


def _return_all(transaction: Transaction, table: Table) -> None:
    transaction.copy(table, transaction.tables.hot, true(), {"position": table.c.position})
    transaction.remove(table)
