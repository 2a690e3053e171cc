"""A settlement written in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    select,
    update,
)

from ..message import REVIVED_HEADER, Message
from ..ports import Dead, Gate, HoldStatus, Refund, Retry, Settled, Settlement
from .sql_leases import lock_leases
from .sql_rows import add_header, message_columns, read_message
from .sql_transaction import LONGEST_ERROR, Transaction


def settle(transaction: Transaction, settlement: Settlement) -> Settled:
    concerned = _fenced_slots(settlement)
    refused = concerned - _lock_ours(transaction, settlement, concerned)
    allowed = _without(settlement, refused) if refused else settlement
    # What is parked first: whether a hold goes or becomes `releasing` depends on it.
    _park(transaction, allowed.parked)
    _deliver(transaction, allowed.delivered, allowed.retention)
    _supersede(transaction, allowed.superseded)
    _retry(transaction, allowed.retries)
    _bury(transaction, allowed.dead)
    for refund in allowed.refunds:
        _refund(transaction, refund)
    _hold_what_is_parked(transaction, allowed.parked)
    still_parked = {gate for gate in allowed.released if not _drop(transaction, gate)}
    return Settled(frozenset(refused), frozenset(still_parked))


def is_plain(settlement: Settlement) -> bool:
    """Whether messages were delivered and are to be deleted, and nothing else."""
    return settlement.retention is None and is_delivered(settlement)


def is_delivered(settlement: Settlement) -> bool:
    """Whether messages were delivered, and nothing else."""
    others = (
        settlement.retries, settlement.dead, settlement.superseded, settlement.parked, settlement.released,
        settlement.refunds,
    )  # fmt: skip
    return bool(settlement.delivered) and not any(others)


# --- fencing


def _fenced_slots(settlement: Settlement) -> set[int]:
    slots = {entry.message.slot for entry in (*settlement.retries, *settlement.dead, *settlement.refunds)}
    slots |= {message.slot for message in settlement.superseded}
    return slots | {gate.slot for gate in (*settlement.released, *(gate for gate, _ in settlement.parked))}


def _lock_ours(transaction: Transaction, settlement: Settlement, fenced: set[int]) -> set[int]:
    """The slots that are ours. Locked with them: those whose holds may go because their message was delivered."""
    slots = fenced | _slots_held_by(transaction, settlement.delivered)
    rows = lock_leases(transaction, sorted(slots)) if slots else ()
    return {row.slot for row in rows if row.owner == settlement.relay and row.epoch == settlement.epochs.get(row.slot)}


def _slots_held_by(transaction: Transaction, messages: Sequence[Message]) -> set[int]:
    holds = transaction.tables.holds
    if not messages or not transaction.has(holds):
        return set()
    held = select(holds.c.slot).where(transaction.among(holds.c.position, positions_of(messages)))
    return set(transaction.run(held).scalars())


def _without(settlement: Settlement, refused: set[int]) -> Settlement:
    return replace(
        settlement,
        retries=[entry for entry in settlement.retries if entry.message.slot not in refused],
        dead=[entry for entry in settlement.dead if entry.message.slot not in refused],
        superseded=[message for message in settlement.superseded if message.slot not in refused],
        parked=[(gate, message) for gate, message in settlement.parked if gate.slot not in refused],
        released=[gate for gate in settlement.released if gate.slot not in refused],
        refunds=[entry for entry in settlement.refunds if entry.message.slot not in refused],
    )


# --- delivered, superseded


def _deliver(transaction: Transaction, messages: Sequence[Message], retention: float | None) -> None:
    """Most rows are hot. The others are looked for only when some are missing."""
    if not messages:
        return
    tables, positions = transaction.tables, positions_of(messages)
    left = len(messages)
    for table in (tables.hot, tables.parked):
        if left:
            left -= finish(transaction, table, messages, retention)
    if left:
        left -= finish_dead(transaction, messages, retention)
    if left:
        deliver_later(transaction, [message for message in messages if message.key is None], retention)
    release_holds(transaction, positions)


def finish(transaction: Transaction, table: Table, messages: Sequence[Message], retention: float | None) -> int:
    """Those that are in a table whose rows have their positions for a key; how many there were."""
    positions, position = positions_of(messages), table.c.position
    if retention is not None:
        archive(transaction, table, transaction.among(position, positions), "delivered", position=position)
    return transaction.remove_at(position, positions)


def finish_dead(transaction: Transaction, messages: Sequence[Message], retention: float | None) -> int:
    dead, condition = transaction.tables.dead, is_dead(transaction, messages)
    if retention is not None:
        archive(transaction, dead, condition, "delivered", position=dead.c.position)
    return transaction.remove(dead, condition)


def archive(transaction: Transaction, table: Table, condition: ColumnElement[bool], outcome: str, **given: Any) -> None:
    given |= {"outcome": outcome, "settled_at": transaction.now}
    transaction.copy(table, transaction.tables.archive, condition, given)


def deliver_later(transaction: Transaction, messages: Sequence[Message], retention: float | None) -> None:
    """A former owner delivered what its successor meanwhile put off."""
    later = transaction.tables.later
    for number, message in find_later(transaction, messages):
        if retention is not None:
            archive(transaction, later, later.c.number == number, "delivered", position=message.position)
        transaction.remove(later, later.c.number == number)


def _supersede(transaction: Transaction, messages: Sequence[Message]) -> None:
    positions = sorted(_still_there(transaction, messages))
    for table in (transaction.tables.hot, transaction.tables.parked) if positions else ():
        condition = transaction.among(table.c.position, positions)
        archive(transaction, table, condition, "superseded", position=table.c.position)
        transaction.remove_at(table.c.position, positions)
    release_holds(transaction, positions)


# --- parked


def _park(transaction: Transaction, parked: Sequence[tuple[Gate, Message]]) -> None:
    for behind in ("key", "topic"):
        messages = [message for gate, message in parked if _behind(gate) == behind]
        if messages:
            _move_to_parked(transaction, positions_of(messages), behind)


def _behind(gate: Gate) -> str:
    return "topic" if gate.key is None else "key"


def _move_to_parked(transaction: Transaction, positions: Sequence[int], behind: str) -> None:
    hot, parked = transaction.tables.hot, transaction.tables.parked
    already = and_(transaction.among(parked.c.position, positions), parked.c.behind != behind)
    transaction.run(update(parked).where(already).values(behind=behind))
    condition = transaction.among(hot.c.position, positions)
    transaction.copy(hot, parked, condition, {"position": hot.c.position, "behind": behind})
    transaction.remove_at(hot.c.position, positions)


def _hold_what_is_parked(transaction: Transaction, parked: Sequence[tuple[Gate, Message]]) -> None:
    """A former owner may have delivered the head meanwhile. Without a hold the next owner would not look here."""
    for gate in dict.fromkeys(gate for gate, _ in parked if gate.key is not None):
        if not _is_held(transaction, gate) and (first := _first_parked(transaction, gate)) is not None:
            put_holds(transaction, [_hold_row(transaction, first, "releasing", first.attempt - 1, "")])


def _first_parked(transaction: Transaction, gate: Gate) -> Message | None:
    """Of a key, be it behind that or behind its topic."""
    parked = transaction.tables.parked
    of_key = and_(parked.c.slot == gate.slot, parked.c.topic == gate.topic, parked.c.key == gate.key)
    found = select(*message_columns(parked)).where(of_key).order_by(parked.c.position).limit(1)
    return next((read_message(row) for row in transaction.rows(found)), None)


def _has_parked(transaction: Transaction, gate: Gate) -> bool:
    parked = transaction.tables.parked
    which = parked.c.behind == "topic" if gate.key is None else parked.c.key == gate.key
    return transaction.has(parked, parked.c.slot == gate.slot, parked.c.topic == gate.topic, which)


def _drop(transaction: Transaction, gate: Gate) -> bool:
    if _has_parked(transaction, gate):
        return False
    if gate.key is not None:
        transaction.remove(transaction.tables.holds, _is_hold_of(transaction, gate))
    return True


# --- failed


def _retry(transaction: Transaction, retries: Sequence[Retry]) -> None:
    there = _still_there(transaction, [retry.message for retry in retries])
    retries = [retry for retry in retries if retry.message.position in there]
    put_off(transaction, _undelivered(transaction), [retry for retry in retries if retry.message.key is None])
    keyed = [retry for retry in retries if retry.message.key is not None]
    _count_attempts(transaction, keyed)
    put_holds(
        transaction,
        [
            _hold_row(transaction, message, "retry", attempts, error, until=transaction.after(delay))
            for message, attempts, delay, error in keyed
        ],
    )


def put_off(transaction: Transaction, sources: Iterable[Table], retries: Sequence[Retry]) -> None:
    """Without a key there is nothing to hold: the row itself waits in later, with a new place when it is due."""
    later = transaction.tables.later
    given = [
        {
            "the_position": retry.message.position,
            "new_due_at": transaction.after(retry.delay),
            "new_attempts": retry.attempts,
            "new_error": retry.error[:LONGEST_ERROR],
        }
        for retry in retries
    ]
    move_each(transaction, sources, later, given)


def _count_attempts(transaction: Transaction, entries: Iterable[Retry | Refund]) -> None:
    given = [{"the_position": entry.message.position, "new_attempts": entry.attempts} for entry in entries]
    for table in (transaction.tables.hot, transaction.tables.parked):
        if given:
            transaction.run(_update_at(table).values(attempts=bindparam("new_attempts", type_=Integer)), given)


def _update_at(table: Table) -> Update:
    return update(table).where(table.c.position == bindparam("the_position", type_=table.c.position.type))


def _bury(transaction: Transaction, dead: Sequence[Dead]) -> None:
    there = _still_there(transaction, [entry.message for entry in dead])
    dead = [entry for entry in dead if entry.message.position in there]
    given = [grave(transaction, entry) for entry in dead]
    move_each(transaction, _undelivered(transaction), transaction.tables.dead, given, died_at=transaction.now)
    holding = [entry for entry in dead if _holds(entry)]
    put_holds(transaction, [_dead_hold(transaction, entry) for entry in holding])
    release_holds(transaction, positions_of(entry.message for entry in dead if not _holds(entry)))


def _holds(entry: Dead) -> bool:
    return entry.holding and entry.message.key is not None


def grave(transaction: Transaction, entry: Dead) -> dict[str, Any]:
    return {
        "the_position": entry.message.position,
        "new_reason": entry.reason,
        "new_error": entry.error[:LONGEST_ERROR],
        "new_attempts": entry.attempts,
        "new_holding": _holds(entry),
        "new_revive_at": None if entry.revive_after is None else transaction.after(entry.revive_after),
    }


def _dead_hold(transaction: Transaction, entry: Dead) -> dict[str, Any]:
    until = None if entry.revive_after is None else transaction.after(entry.revive_after)
    return _hold_row(transaction, entry.message, "dead", entry.attempts, entry.error, until=until)


def move_each(
    transaction: Transaction, sources: Iterable[Table], target: Table, each: Sequence[dict[str, Any]], **given: Any
) -> None:
    """Move rows one by one, each with its own new values."""
    positions = [one["the_position"] for one in each]
    for source in sources if each else ():
        kept = {"position": source.c.position} if "position" in target.c else {}
        transaction.copy_each(source, target, each, {**kept, **given})
        transaction.remove_at(source.c.position, positions)


def _still_there(transaction: Transaction, messages: Sequence[Message]) -> set[int]:
    """Somebody may have delivered them meanwhile; a hold by a message that is gone would never end."""
    found: set[int] = set()
    for table in _undelivered(transaction) if messages else ():
        found.update(transaction.lock_at(table.c.position, positions_of(messages)))
    return found


# --- refunds


def _refund(transaction: Transaction, refund: Refund) -> None:
    if refund.message.key is None:
        refund_unkeyed(transaction, refund)
    elif _refund_held(transaction, refund):
        _raise_in_place(transaction, refund)
    else:
        _raise_last(transaction, refund)


def refund_unkeyed(transaction: Transaction, refund: Refund) -> None:
    later, dead, hot = transaction.tables.later, transaction.tables.dead, transaction.tables.hot
    for number, _ in find_later(transaction, [refund.message]):
        due = update(later).where(later.c.number == number)
        transaction.run(due.values(due_at=transaction.now, attempts=refund.attempts))
    condition = is_dead(transaction, [refund.message])
    if transaction.rows(select(dead.c.number).where(condition).with_for_update()):  # an operator may be at it
        transaction.copy(dead, hot, condition, {"attempts": refund.attempts})
        transaction.remove(dead, condition)


def _raise_in_place(transaction: Transaction, refund: Refund) -> None:
    """If it is dead. Among the parked rows: the reader's mark may have passed its position in the hot table."""
    dead, condition = transaction.tables.dead, is_dead(transaction, [refund.message])
    given = {"position": dead.c.position, "behind": "key", "attempts": refund.attempts}
    transaction.copy(dead, transaction.tables.parked, condition, given)
    transaction.remove(dead, condition)


def _raise_last(transaction: Transaction, refund: Refund) -> None:
    """If it is dead. It let its key go on, as one does that an operator revives."""
    dead, condition = transaction.tables.dead, is_dead(transaction, [refund.message])
    for row in transaction.rows(select(dead.c.headers).where(condition).with_for_update()):
        given = {"attempts": refund.attempts, "headers": add_header(row.headers, REVIVED_HEADER)}
        transaction.copy(dead, transaction.tables.hot, condition, given)
        transaction.remove(dead, condition)


def _refund_held(transaction: Transaction, refund: Refund) -> bool:
    _count_attempts(transaction, [refund])
    holds = transaction.tables.holds
    held = update(holds).where(holds.c.position == refund.message.position, holds.c.status != "releasing")
    return transaction.changed(held.values(status="retry", attempts=refund.attempts, until=transaction.now)) > 0


# --- holds


def release_holds(transaction: Transaction, positions: Sequence[int]) -> None:
    """The messages at these positions are out of the way: their holds go, or let out what is parked behind them."""
    holds, parked = transaction.tables.holds, transaction.tables.parked
    if not positions or not transaction.has(holds):
        return
    by_these = transaction.among(holds.c.position, positions)
    is_waited_for = exists().where(_same_key(parked, holds))
    transaction.run(update(holds).where(by_these, is_waited_for).values(status="releasing", until=None))
    transaction.run(delete(holds).where(by_these, ~is_waited_for))


def put_holds(transaction: Transaction, rows: Sequence[dict[str, Any]]) -> None:
    """One hold per key, the earliest message's; one by the same message keeps its age."""
    if not rows:
        return
    holds = transaction.tables.holds
    first = {(row["slot"], row["topic"], row["key"]): row for row in sorted(rows, key=_position, reverse=True)}
    _keep_ages(transaction, first.values())
    same_key = [
        holds.c[name] == bindparam(f"the_{name}", type_=holds.c[name].type) for name in ("slot", "topic", "key")
    ]
    keys = [{"the_slot": slot, "the_topic": topic, "the_key": key} for slot, topic, key in first]
    transaction.run(delete(holds).where(*same_key), keys)
    transaction.run(insert(holds), list(first.values()))


def _keep_ages(transaction: Transaction, rows: Iterable[dict[str, Any]]) -> None:
    holds = transaction.tables.holds
    known = select(holds.c.position, holds.c.since)
    known = known.where(transaction.among(holds.c.position, [row["position"] for row in rows]))
    ages = {row.position: row.since for row in transaction.rows(known)}
    for row in rows:
        row["since"] = ages.get(row["position"], row["since"])


def _position(row: dict[str, Any]) -> int:
    return row["position"]


def _hold_row(
    transaction: Transaction, message: Message, status: HoldStatus, attempts: int, error: str, until: Any = None
) -> dict[str, Any]:
    return {
        "slot": message.slot,
        "topic": message.topic,
        "key": message.key,
        "message_id": message.id,
        "position": message.position,
        "attempts": attempts,
        "status": status,
        "since": transaction.now,
        "until": until,
        "error": error[:LONGEST_ERROR],
    }


def gate_of(message: Message) -> Gate:
    return Gate(message.slot, message.topic, message.key)


def _is_held(transaction: Transaction, gate: Gate) -> bool:
    return transaction.has(transaction.tables.holds, _is_hold_of(transaction, gate))


def _is_hold_of(transaction: Transaction, gate: Gate) -> ColumnElement[bool]:
    holds = transaction.tables.holds
    return and_(holds.c.slot == gate.slot, holds.c.topic == gate.topic, holds.c.key == gate.key)


def _same_key(one: Table, other: Table) -> ColumnElement[bool]:
    return and_(one.c.slot == other.c.slot, one.c.topic == other.c.topic, one.c.key == other.c.key)


# --- finding rows


def _undelivered(transaction: Transaction) -> tuple[Table, Table]:
    """Where a row is that a relay may have in memory."""
    return transaction.tables.hot, transaction.tables.parked


def positions_of(messages: Iterable[Message]) -> list[int]:
    return [message.position for message in messages]


def is_dead(transaction: Transaction, messages: Sequence[Message]) -> ColumnElement[bool]:
    """By id, which has an index, and by position: a replay has the same id."""
    dead = transaction.tables.dead
    ids = [message.id for message in messages]
    return and_(transaction.among(dead.c.id, ids), transaction.among(dead.c.position, positions_of(messages)))


def find_later(transaction: Transaction, messages: Sequence[Message]) -> list[tuple[int, Message]]:
    later = transaction.tables.later
    if not messages:
        return []
    wanted = {(message.id, message.replays): message for message in messages}
    there = and_(
        transaction.among(later.c.slot, sorted({message.slot for message in messages})),
        transaction.among(later.c.id, [message.id for message in messages]),
    )
    rows: Sequence[Any] = transaction.rows(select(later.c.number, later.c.id, later.c.replays).where(there))
    return [(row.number, wanted[row.id, row.replays]) for row in rows if (row.id, row.replays) in wanted]
