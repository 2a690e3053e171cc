"""Commands for inboxes: inbox init, inbox status, inbox clean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from .. import registry
from ..configuration import Configuration
from ..connections.requests import Consumer
from ..duration import Duration
from ..errors import ConfigurationError
from ..inbox import Inbox
from . import document
from .invocation import Command, Invocation, located, passed, place_of, printing, store_of
from .options import COUNT, duration_option
from .output import print_json, print_table

T = TypeVar("T")

WINDOW = "30d"
BATCH = 10_000


@click.group(invoke_without_command=True)
@click.pass_context
def inbox(context: click.Context) -> None:
    """Look after the memory of a consumer: which messages it has handled.

    An inbox is in the consumer's database, with or without an outbox. --name is the inbox's.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@inbox.command(cls=Command)
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
    """Create the tables of the inbox, as far as they are missing."""
    configuration = invocation.configuration()
    wanted = _inbox_of(configuration)
    if sql:
        _print_sql(invocation, wanted, dialect or _dialect_of(configuration))
        return
    if dialect is not None:
        raise click.UsageError("--dialect goes with --sql; otherwise the database decides")
    _ask(wanted.create_tables_async, configuration, create=True)
    if invocation.json:
        tables = [table.fullname for table in wanted.tables.all()]
        print_json({"inbox": wanted.name, "store": place_of(configuration), "tables": tables})
    else:
        click.echo(f"the tables of inbox {wanted.name!r} are in {place_of(configuration)}")


@inbox.command(cls=Command)
@located
@printing
@passed
def status(invocation: Invocation) -> None:
    """Show what is remembered for each consumer. All of it is counted."""
    configuration = invocation.configuration()
    wanted = _inbox_of(configuration)
    found = _ask(wanted.status_async, configuration)
    if invocation.json:
        consumers = [_document(consumer) for consumer in found]
        print_json({"inbox": wanted.name, "store": place_of(configuration), "consumers": consumers})
    else:
        titles = ["consumer", "messages", "oldest", "newest", "keys"]
        print_table(titles, [list(_document(consumer).values()) for consumer in found])


@inbox.command(cls=Command)
@duration_option(
    "--window", default=WINDOW, help=f"Forget messages that were handled longer ago than this.  [{WINDOW}]"
)
@click.option("--batch", type=COUNT, default=BATCH, metavar="NUMBER", help=f"Messages forgotten at a time.  [{BATCH}]")
@located
@printing
@passed
def clean(invocation: Invocation, window: float, batch: int) -> None:
    """Forget messages that were handled long ago: if one of them came again, it would be handled again.

    Marks of strict streams are kept.
    """
    configuration = invocation.configuration()
    wanted, count, last = _inbox_of(configuration, window), 0, batch
    while last == batch:
        last = _ask(lambda connection: wanted.clean_async(connection, limit=batch), configuration)
        count += last
    if invocation.json:
        print_json({"forgotten": count})
    else:
        click.echo(f"forgot {count} message{'' if count == 1 else 's'}" if count else "there was nothing to forget")


def _inbox_of(configuration: Configuration, window: Duration = WINDOW) -> Inbox:
    return Inbox(
        configuration.name,
        prefix=configuration.prefix,
        schema=configuration.schema,
        window=window,
        create_tables=False,
    )


def _ask(work: Callable[[Any], Awaitable[T]], configuration: Configuration, *, create: bool = False) -> T:
    """Do the work in a transaction of its own."""
    url = store_of(configuration)
    store = registry.load(registry.STORES, registry.scheme_of(url))(url, schema=configuration.schema)
    if not hasattr(store, "transaction_apart"):
        raise ConfigurationError(f"{place_of(configuration)} is no database that an inbox could be in")

    async def run() -> T:
        async with store.transaction_apart(create=create) as connection:
            return await work(connection)

    return asyncio.run(run())


def _dialect_of(configuration: Configuration) -> str:
    return registry.scheme_of(configuration.store) if configuration.store else "sqlite"


def _print_sql(invocation: Invocation, wanted: Inbox, dialect: str) -> None:
    sql = wanted.ddl(dialect)
    if invocation.json:
        print_json({"inbox": wanted.name, "dialect": dialect, "sql": sql})
    else:
        click.echo(sql.rstrip())


def _document(consumer: Consumer) -> document.Document:
    return {
        "consumer": consumer.name,
        "messages": consumer.messages,
        "oldest": document.moment(consumer.oldest),
        "newest": document.moment(consumer.newest),
        "keys": consumer.keys,
    }
