"""Commands that set up and run: init, relay, drain, demo."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from .. import events, registry
from ..configuration import Configuration
from ..desk import Desk
from ..errors import ConfigurationError
from ..redact import redact
from ..relay.process import collect_garbage_less
from ..relay.relay import Relay, Report
from . import document
from .app import with_tasks
from .failure import ATTENTION
from .invocation import Command, Invocation, located, outbox_of, passed, place_of, printing, store_of
from .options import destinations, duration_option, settings
from .output import note, print_json, print_table

# --- init


@click.command(cls=Command)
@click.option("--sql", is_flag=True, help="Only print the SQL that would create the tables; needs no database.")
@click.option(
    "--dialect",
    metavar="NAME",
    help="For --sql: sqlite, postgresql, mysql, mariadb.  [that of the database, or sqlite]",
)
@located
@printing
@passed
def init(invocation: Invocation, sql: bool, dialect: str | None) -> None:
    """Create the tables of the outbox, as far as they are missing."""
    configuration = invocation.configuration()
    if sql:
        _print_sql(invocation, configuration, dialect)
        return
    if dialect is not None:
        raise click.UsageError("--dialect goes with --sql; otherwise the database decides")
    invocation.ask(Desk.init, configuration)
    tables = [table.fullname for table in outbox_of(configuration).tables.all()]
    if invocation.json:
        print_json({"outbox": configuration.name, "store": place_of(configuration), "tables": tables})
    else:
        click.echo(f"the tables of outbox {configuration.name!r} are in {place_of(configuration)}")


def _print_sql(invocation: Invocation, configuration: Configuration, dialect: str | None) -> None:
    dialect = dialect or (registry.scheme_of(configuration.store) if configuration.store else "sqlite")
    sql = outbox_of(configuration).ddl(dialect)
    if invocation.json:
        print_json({"outbox": configuration.name, "dialect": dialect, "sql": sql})
    else:
        click.echo(sql.rstrip())


# --- relay and drain


@click.command(cls=Command)
@destinations
@settings
@located
@passed
def relay(invocation: Invocation, **flags: Any) -> None:
    """Deliver messages until stopped.

    SIGTERM and SIGINT stop it gently: what is in flight is finished, then it ends with status 0.
    """
    configuration = invocation.configuration(**flags)
    running = _relay(configuration)
    note(f"serving {_served(configuration, running)}")
    collect_garbage_less()
    asyncio.run(_serve(running))


async def _serve(running: Relay) -> None:
    await running.run(handle_signals=True)
    if len(asyncio.all_tasks()) > 1:  # somebody was in a hurry, and a task in a thread cannot be ended
        logging.shutdown()
        os._exit(ATTENTION)


@click.command(cls=Command)
@destinations
@duration_option("--timeout", help="Stop after this time, even if something is due.")
@settings
@located
@printing
@passed
def drain(invocation: Invocation, timeout: float | None, **flags: Any) -> None:
    """Deliver until nothing is due, print what was done, and end.

    Status 1 if messages died, if keys are on hold, or if a destination is unavailable.
    """
    configuration = invocation.configuration(**flags)
    trips = Trips()
    report = asyncio.run(_relay(configuration, trips).drain(timeout=timeout, handle_signals=True))
    found = document.of_report(report, trips.unavailable)
    if invocation.json:
        print_json(found)
    else:
        # Messages that go to standard output stay alone there.
        _print_report(found, aside=_uses_stdout(configuration))
    if _needs_attention(report, trips):
        raise click.exceptions.Exit(ATTENTION)


class Trips:
    """An observer that remembers which destinations are unavailable, and why."""

    def __init__(self) -> None:
        self.unavailable: dict[str, str] = {}

    def notice(self, event: events.Event) -> None:
        if isinstance(event, events.BreakerOpened):
            self.unavailable[event.destination] = redact(event.error)
        elif isinstance(event, events.BreakerClosed):
            self.unavailable.pop(event.destination, None)
        elif isinstance(event, events.TopicHeldBack):
            self.unavailable[f"{event.destination}, topic {event.topic}"] = redact(event.error)
        elif isinstance(event, events.TopicResumed):
            self.unavailable.pop(f"{event.destination}, topic {event.topic}", None)


def _needs_attention(report: Report, trips: Trips) -> bool:
    return bool(report.dead or report.held or trips.unavailable)


def _print_report(found: Mapping[str, Any], *, aside: bool) -> None:
    counts = {name: value for name, value in found.items() if name != "unavailable"}
    if aside:
        note(", ".join(f"{name} {count}" for name, count in counts.items()))
    else:
        print_table(list(counts), [list(counts.values())])
    for destination, error in found["unavailable"].items():
        note(f"warning: destination {destination} is unavailable: {error}")


def _uses_stdout(configuration: Configuration) -> bool:
    return any(registry.scheme_of(url) == "stdout" for url in _targets(configuration).values())


def _relay(configuration: Configuration, *observers: Trips) -> Relay:
    targets, tasks = dict(_targets(configuration)), None
    if configuration.app is not None:
        configuration, tasks = with_tasks(configuration, configuration.app)
    return Relay(
        store_of(configuration),
        targets or None,
        outbox=outbox_of(configuration),
        tasks=tasks,
        observers=observers,
        settings=configuration.settings,
    )


def _targets(configuration: Configuration) -> Mapping[str, str]:
    routes = configuration.destinations()
    if routes is None and configuration.app is None:
        raise ConfigurationError(
            "no destination is configured: give --publisher stdout: or --route 'orders.*=stdout:', set "
            'POSTROOM_PUBLISHER, or write publisher = "stdout:" in postroom.toml; or give --app for tasks alone'
        )
    return {} if routes is None else routes.targets


def _served(configuration: Configuration, running: Relay) -> str:
    routes = [f"{glob} → {name}" for glob, name in running.destinations.items()]
    if configuration.app is not None:
        routes.append(f"tasks of {configuration.app}")
    return f"outbox {running.outbox.name!r} in {place_of(configuration)}: {', '.join(routes)}"


# --- demo


@click.command(cls=Command)
@click.option("--seed", type=int, metavar="NUMBER", help="Repeat a run: the same orders and the same accidents.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    is_flag=False,
    flag_value="postroom-demo",
    help="Leave the database there; without a name, in postroom-demo.",
)
@printing
@passed
def demo(invocation: Invocation, seed: int | None, keep: Path | None) -> None:
    """Run a small shop with an outage and a crash, and show that nothing was lost.

    Status 0 only if no message was lost, made up or out of order.
    """
    from ..demo import run  # only this command needs it

    raise click.exceptions.Exit(run(seed=seed, json_output=invocation.json, keep=keep))
