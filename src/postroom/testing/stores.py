"""From what a test has (an engine, a URL, a store) to a store whose time the test can move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import URL, Connection, Engine, inspect, literal, make_url, select
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from .. import registry
from ..clock import Clock
from ..errors import ConfigurationError
from ..message import Message
from ..outbox import Outbox
from ..ports import Store
from ..stores.schema import MESSAGE_COLUMNS
from ..stores.sql_rows import read_message

Place = str | URL | Engine | AsyncEngine | Store
"""Where an outbox is."""


def has_own_time(place: Place) -> bool:
    """Whether it is a store already, whose clock was chosen by its maker."""
    return not isinstance(place, (str, URL, Engine, AsyncEngine))


def store_at(place: Place, outbox: Outbox, clock: Clock | None) -> Store:
    """A store on that database, with this clock, if there is one. It connects by itself, by the URL alone."""
    if not isinstance(place, (str, URL, Engine, AsyncEngine)):
        return place
    url = _url_of(place)
    scheme = registry.scheme_of(url)
    _refuse_private(scheme, url)
    kind: Any = registry.load(registry.STORES, scheme)
    return kind(url, name=outbox.name, prefix=outbox.tables.prefix, schema=outbox.schema, clock=clock)


def messages_within(transaction: Session | Connection, outbox: Outbox) -> Iterator[tuple[str, Message]]:
    """What a transaction sees in an outbox that nobody else can see yet, with its state."""
    connection = transaction.connection() if isinstance(transaction, Session) else transaction
    for state, table in (("pending", outbox.tables.hot), ("later", outbox.tables.later)):
        if inspect(connection).has_table(table.name, schema=table.schema):
            columns = [table.c.get(name, literal(0)) for name in ("position", *MESSAGE_COLUMNS)]
            rows = connection.execute(select(*columns).order_by(table.c.get("position", table.c.id)))
            yield from ((state, read_message(tuple(row))) for row in rows)


def _url_of(place: str | URL | Engine | AsyncEngine) -> str:
    if isinstance(place, str):
        return place
    url = place if isinstance(place, URL) else place.url
    return url.render_as_string(hide_password=False)


def _refuse_private(scheme: str, url: str) -> None:
    try:
        is_private = scheme == "sqlite" and make_url(url).database in (None, "", ":memory:")
    except ArgumentError:
        return  # the store says what is wrong with it
    if is_private:
        raise ConfigurationError(
            "a SQLite database in memory is seen by its own connection alone, so no relay can read it: test with a "
            "file, such as f'sqlite:///{tmp_path}/test.db'"
        )
