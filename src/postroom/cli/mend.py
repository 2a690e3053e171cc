"""Commands that change what happens to messages: revive, discard, replay, clean."""

from __future__ import annotations

import sys
from typing import Any, cast

import click

from ..desk import Which
from ..errors import ConfigurationError
from .failure import ATTENTION
from .invocation import Command, Invocation, located, passed, printing
from .options import COUNT, check_choice, chosen
from .output import note, print_json, progress


@click.command(cls=Command)
@chosen
@located
@printing
@passed
def revive(invocation: Invocation, ids: tuple[str, ...], **which: Any) -> None:
    """Let dead messages try again, with all their attempts.

    Give ids (their first 8 characters will do), or filters, or --all. One that blocks its key keeps its place.
    """
    check_choice(ids, cast(Which, which))
    with progress("reviving", quiet=invocation.json) as tell:
        count = invocation.ask(lambda desk: desk.revive(ids or None, progress=tell, **cast(Which, which)))
    _report(invocation, "revived", count, "no dead message matches")


@click.command(cls=Command)
@chosen
@click.option("--yes", is_flag=True, help="Do not ask. Needed for filters and --all when there is nobody to ask.")
@located
@printing
@passed
def discard(invocation: Invocation, ids: tuple[str, ...], yes: bool, **which: Any) -> None:
    """Give up dead messages for good; what waits behind them goes on.

    Give ids (their first 8 characters will do), or filters, or --all.
    """
    check_choice(ids, cast(Which, which))
    if not yes:
        _confirm(ids, which)
    with progress("discarding", quiet=invocation.json) as tell:
        count = invocation.ask(lambda desk: desk.discard(ids or None, progress=tell, **cast(Which, which)))
    _report(invocation, "discarded", count, "no dead message matches")


@click.command(cls=Command)
@chosen
@click.option("--new-id", is_flag=True, help="Under new ids, so that an inbox takes them for new.")
@located
@printing
@passed
def replay(invocation: Invocation, ids: tuple[str, ...], new_id: bool, **which: Any) -> None:
    """Send delivered messages again, from the archive.

    Give ids (their first 8 characters will do), or filters, or --all. Messages are in the archive if the relay has a
    retention.
    """
    check_choice(ids, cast(Which, which))
    with progress("replaying", quiet=invocation.json) as tell:
        count = invocation.ask(
            lambda desk: desk.replay(ids or None, new_id=new_id, progress=tell, **cast(Which, which))
        )
    _report(invocation, "replayed", count, "no delivered message matches: they are kept only if a retention is set")


@click.command(cls=Command)
@click.option("--retention", metavar="DURATION", help="Delete delivered messages older than this.  [as configured]")
@click.option("--batch", type=COUNT, metavar="NUMBER", help="Rows deleted at a time.  [clean_batch, as configured]")
@located
@printing
@passed
def clean(invocation: Invocation, retention: str | None, batch: int | None) -> None:
    """Delete what nobody needs: old delivered messages, idempotency keys past their window, relays long gone.

    Relays do it by themselves. An undelivered message is never touched.
    """
    configuration = invocation.configuration(retention=retention)
    kept = configuration.settings.retention
    size = batch or configuration.settings.clean_batch
    with progress("cleaning", quiet=invocation.json) as tell:
        count = invocation.ask(lambda desk: desk.clean(retention=kept, batch=size, progress=tell), configuration)
    if kept is None:
        note("delivered messages are kept, since no retention is set: give --retention to delete older ones")
    _report(invocation, "cleaned", count, "there was nothing to clean", thing="row")


def _confirm(ids: tuple[str, ...], which: dict[str, Any]) -> None:
    if not _is_anybody_there():
        if ids:
            return
        raise ConfigurationError("discarding by filter needs --yes when there is nobody to ask")
    if not click.confirm(f"Discard {_described(ids, which)} for good?", err=True):
        note("nothing was discarded")
        raise click.exceptions.Exit(ATTENTION)


def _is_anybody_there() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _described(ids: tuple[str, ...], which: dict[str, Any]) -> str:
    if ids:
        return f"{len(ids)} message{'' if len(ids) == 1 else 's'}"
    given = [f"{name.replace('_', ' ')} {value}" for name, value in which.items() if value and name != "all"]
    return f"every dead message{' with ' if given else ''}{', '.join(given)}"


def _report(invocation: Invocation, done: str, count: int, nothing: str, thing: str = "message") -> None:
    if invocation.json:
        print_json({done: count})
    else:
        click.echo(f"{done} {count} {thing}{'' if count == 1 else 's'}" if count else nothing)
