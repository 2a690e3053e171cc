"""Commands that only look: status, ls, show, holds."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, cast, get_args

import click

from ..desk import Desk
from ..duration import spell
from ..message import SLOTS
from ..ports import Entry, Hold, State, Status
from . import document
from .failure import ATTENTION
from .invocation import Command, Invocation, located, passed, place_of, printing
from .options import COUNT, duration_option, filters
from .output import age, is_terminal, json_text, note, print_facts, print_json, print_table, printable

# --- status


@click.command(cls=Command)
@click.option(
    "--check", is_flag=True, help=f"End with status {ATTENTION} if something pending is older than --max-age."
)
@duration_option("--max-age", default="5m", help="How old the oldest may be, for --check.  [5m]")
@located
@printing
@passed
def status(invocation: Invocation, check: bool, max_age: float) -> None:
    """Show how many messages are where, and who is at work.

    With --check it is a health check: it fails when the oldest pending message is older than --max-age, whether no
    relay is alive or a relay is and does not deliver.
    """
    configuration = invocation.configuration()
    found = invocation.ask(Desk.status, configuration)
    overdue = _overdue(found, max_age) if check else None
    warnings = [warning for warning in (_unserved(found), overdue) if warning]
    if invocation.json:
        print_json(document.of_status(found, place_of(configuration), warnings))
    else:
        _print_status(found, place_of(configuration))
        for warning in warnings:
            note(f"warning: {warning}")
    if overdue:
        raise click.exceptions.Exit(ATTENTION)


def _waiting(found: Status) -> int:
    return found.counts.get("pending", 0) + found.counts.get("failed", 0)


def _unserved(found: Status) -> str | None:
    if found.relays or not _waiting(found):
        return None
    return f"no relay is alive, and messages wait ({_waiting(found)}): start one with `postroom relay`"


def _overdue(found: Status, max_age: float) -> str | None:
    oldest = found.oldest_pending_seconds
    if oldest is None or oldest <= max_age:
        return None
    who = "a relay is alive, but does not get it delivered" if found.relays else "no relay is alive"
    return (
        f"the oldest pending message is {age(oldest)} old, more than {spell(max_age)}, and {who}: "
        "see `postroom holds` and the relay's log"
    )


def _print_status(found: Status, store: str) -> None:
    print_facts(
        [
            ("outbox", f"{found.outbox} in {store}"),
            *((state, _counted(found, state)) for state in get_args(State)),
            ("oldest pending", age(found.oldest_pending_seconds)),
            ("keys on hold", found.holds),
            ("parked", found.parked),
            ("relays alive", len(found.relays)),
            ("slots owned", f"{found.slots_owned}/{SLOTS}"),
            ("claim", found.meta.claim),
            ("schema version", found.meta.version),
        ]
    )
    if found.relays:
        click.echo()
        print_table(
            ["relay", "slots", "in flight", "woken by", "seen"],
            [
                [relay.get(name) for name in ("id", "slots", "in_flight", "woken_by", "seen_at")]
                for relay in found.relays
            ],
        )
    if found.breakers:
        click.echo()
        print_table(
            ["destination", "breaker", "since", "error"],
            [_breaker_cells(document.of_breaker(breaker)) for breaker in found.breakers],
        )


def _counted(found: Status, state: str) -> str:
    """The dead with why."""
    count = str(found.counts.get(state, 0))
    if state != "dead" or not found.reasons:
        return count
    return f"{count} ({', '.join(f'{reason} {number}' for reason, number in sorted(found.reasons.items()))})"


def _breaker_cells(breaker: dict[str, Any]) -> list[object]:
    state = "tripped" if breaker["tripped"] else "closed"
    return [breaker.get("destination"), state, breaker.get("tripped_at"), breaker.get("error")]


# --- ls


@click.command("ls", cls=Command)
@click.option("--state", type=click.Choice(get_args(State)), help="In this state.")
@filters
@click.option("--limit", type=COUNT, default=100, metavar="NUMBER", help="At most so many.  [100]")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="NUMBER", help="Skip so many first.")
@located
@printing
@passed
def list_messages(invocation: Invocation, limit: int, **query: Any) -> None:
    """List messages, oldest first."""

    async def ask(desk: Desk) -> tuple[list[Entry], datetime]:
        return await desk.list(limit=limit, **query), await desk.now()

    found, now = invocation.ask(ask)
    if invocation.json:
        print_json([document.of_entry(entry) for entry in found])
        return
    titles = ["id", "state", "topic", "key", "type", "age", "attempts", "error"]
    print_table(titles, [_entry_cells(entry, now) for entry in found])
    if len(found) == limit:
        note(f"there may be more: these are {limit}, see --limit and --offset")


def _entry_cells(entry: Entry, now: datetime) -> list[object]:
    message = entry.message
    error = entry.error or entry.reason
    return [
        message.id, _state(entry), message.topic, message.key, message.type, _age_of(message.created_at, now),
        entry.attempts, document.redacted(error),
    ]  # fmt: skip


def _state(entry: Entry) -> str:
    """A pending message behind a hold says so, since it is not its turn."""
    return "pending (held)" if entry.state == "pending" and entry.held else entry.state


def _age_of(time: datetime | None, now: datetime) -> str | None:
    return None if time is None else age((now - time).total_seconds())


# --- show


@click.command(cls=Command)
@click.argument("id")
@click.option("--raw", is_flag=True, help="Write the bytes of the payload, and nothing else.")
@located
@printing
@passed
def show(invocation: Invocation, id: str, raw: bool) -> None:
    """Show everything about one message. The first 8 characters of its ID will do, if no other id begins so."""
    entry = invocation.ask(lambda desk: desk.show(id))
    if raw:
        sys.stdout.buffer.write(entry.message.payload or b"")
        sys.stdout.buffer.flush()
    elif invocation.json:
        print_json(document.of_entry(entry))
    else:
        _print_entry(document.of_entry(entry))


def _print_entry(entry: dict[str, Any]) -> None:
    apart = ("headers", "payload", "payload_encoding")
    print_facts((name.replace("_", " "), _fact(value)) for name, value in entry.items() if name not in apart)
    click.echo(f"\nheaders{'' if entry['headers'] else ': none'}")
    print_facts((f"  {name}", value) for name, value in entry["headers"].items())
    click.echo(f"\npayload ({entry['payload_encoding']})")
    click.echo(_payload_text(entry["payload_encoding"], entry["payload"]))


def _fact(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _payload_text(encoding: str, payload: Any) -> str:
    if encoding == "json":
        return json_text(payload, indent=2)
    text = cast(str, payload)
    return "\n".join(map(printable, text.splitlines())) if is_terminal() else text


# --- holds


@click.command(cls=Command)
@click.option("--topic", metavar="TOPIC", help="Of this topic.")
@click.option("--key", metavar="KEY", help="Of this key.")
@click.option("--limit", type=COUNT, default=100, metavar="NUMBER", help="At most so many.  [100]")
@located
@printing
@passed
def holds(invocation: Invocation, topic: str | None, key: str | None, limit: int) -> None:
    """List the keys that may not go on, by which message, and how many wait behind it."""

    async def ask(desk: Desk) -> tuple[list[Hold], datetime]:
        return list(await desk.holds(topic=topic, key=key, limit=limit)), await desk.now()

    found, now = invocation.ask(ask)
    if invocation.json:
        print_json([document.of_hold(hold, now) for hold in found])
        return
    titles = ["topic", "key", "message", "status", "since", "until", "waiting", "reason"]
    print_table(titles, [_hold_cells(hold, now) for hold in found])
    if any(hold.status == "dead" for hold in found):
        note("a dead message holds its key until you `postroom revive` or `postroom discard` it")


def _hold_cells(hold: Hold, now: datetime) -> list[object]:
    until = None if hold.due_in is None else f"in {age(hold.due_in)}"
    since = None if hold.since is None else f"{_age_of(hold.since, now)} ago"
    reason = document.redacted(hold.error)
    return [hold.topic, hold.key, hold.message_id, hold.status, since, until, hold.waiting, reason]
