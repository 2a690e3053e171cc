"""What the write side and inboxes must know about each database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, ColumnElement, Table, bindparam, func, literal_column, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import CompileError, NoSuchModuleError
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.base import Executable

from ..errors import ConfigurationError, UnsupportedConnection
from ..stores.schema import SET_UP_LOCK, Tables, db_now
from .creation import Family, create_one_by_one, create_with_bell, create_with_indexes
from .presence import mysql_tables, relations
from .procedure import Procedure, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    claim: Callable[[Table, ColumnElement[Any], ColumnElement[Any]], Executable]
    """Of the dedupe table, `until` and `now`: take a key that nobody holds, or whose holder's time is over."""
    confirm: Callable[[Table], Executable]
    """Write the `winner` to the row of the key that was `claimed`."""
    count: Callable[[Table], Executable]
    """Move a counter on by `sequence`; a new one starts there, with a generation of its own."""
    insert_missing: Callable[[Table], Any]
    """An INSERT that changes nothing where the primary key is there. Whoever is about to insert it is waited for."""
    create: Callable[[Tables], Iterator[ExecutableDDLElement]]
    create_inbox: Callable[[Family], Iterator[ExecutableDDLElement]]
    creates_tables: bool
    """The first message may do so: DDL does not commit the transaction."""
    takes_turns: bool = False
    """One transaction writes at a time: what begins by reading cannot wait for its turn, and whoever waits keeps all
    others from writing."""
    asks_first: bool = False
    """An error aborts the transaction, so whether the tables are there must be asked before."""
    tells_new: bool = False
    """RETURNING says whether a row was inserted."""
    looks_first: bool = False
    """A row can be looked for and locked before it is made: who finds none keeps nobody from making it."""
    lock: Executable | None = None
    """Keeps two transactions from creating the tables at once."""
    present: Callable[[Table, Sequence[str]], Executable] | None = None
    """Which names are there, beside a table, where IF NOT EXISTS is not good enough."""
    lacks_table: Callable[[BaseException], bool]


def create_missing(dialect: Dialect, home: Table, creation: Iterable[ExecutableDDLElement]) -> Procedure[None]:
    """Execute of `creation` what is not there, in the schema of `home`."""
    named = [(str(getattr(statement.target, "name", "")), statement) for statement in creation]
    if dialect.lock is not None:
        yield Step(dialect.lock)
    present: set[str] = set()
    if dialect.present is not None:
        found = yield Step(dialect.present(home, [name for name, _ in named]), returns=True)
        present = {name.lower() for (name,) in found}
    for name, statement in named:
        if name.lower() not in present:
            yield Step(statement)


def _confirmation() -> dict[str, Any]:
    """The row is there, with its time. As upserts, many of them fit into one statement."""
    return {"key": bindparam("claimed"), "message_id": bindparam("winner"), "expires_at": db_now()}


# --- SQLite and PostgreSQL: ON CONFLICT


def _conflict_claim(insert: Callable[..., Any]) -> Callable[..., Executable]:
    def claim(table: Table, until: ColumnElement[Any], now: ColumnElement[Any]) -> Executable:
        statement = insert(table).values(expires_at=until)
        new = statement.excluded
        return statement.on_conflict_do_update(
            index_elements=[table.c.key],
            set_={"message_id": new.message_id, "expires_at": new.expires_at},
            where=table.c.expires_at <= now,
        )

    return claim


def _conflict_count(insert: Callable[..., Any]) -> Callable[[Table], Executable]:
    def count(table: Table) -> Executable:
        statement = insert(table)
        return statement.on_conflict_do_update(
            index_elements=[table.c.topic, table.c.key],
            set_={"sequence": table.c.sequence + statement.excluded.sequence},
        )

    return count


def _conflict_confirm(insert: Callable[..., Any]) -> Callable[[Table], Executable]:
    def confirm(table: Table) -> Executable:
        statement = insert(table).values(_confirmation())
        return statement.on_conflict_do_update(
            index_elements=[table.c.key], set_={"message_id": statement.excluded.message_id}
        )

    return confirm


def _conflict_nothing(insert: Callable[..., Any]) -> Callable[[Table], Any]:
    return lambda table: insert(table).on_conflict_do_nothing(index_elements=list(table.primary_key))


# --- MySQL: ON DUPLICATE KEY UPDATE, never INSERT IGNORE, which swallows truncation


def _duplicate_claim(table: Table, until: ColumnElement[Any], now: ColumnElement[Any]) -> Executable:
    """What is set first can be seen by what is set next, so the time goes last."""
    statement = mysql.insert(table).values(expires_at=until)
    is_over = table.c.expires_at <= now
    return statement.on_duplicate_key_update(
        [
            (name, func.if_(is_over, statement.inserted[name], table.c[name], type_=table.c[name].type))
            for name in ("message_id", "expires_at")
        ]
    )


def _duplicate_confirm(table: Table) -> Executable:
    statement = mysql.insert(table).values(_confirmation())
    return statement.on_duplicate_key_update(message_id=statement.inserted.message_id)


def _duplicate_count(table: Table) -> Executable:
    statement = mysql.insert(table)
    return statement.on_duplicate_key_update(sequence=table.c.sequence + statement.inserted.sequence)


def _duplicate_nothing(table: Table) -> Any:
    column = next(iter(table.primary_key))
    return mysql.insert(table).on_duplicate_key_update({column.name: column})


# --- what errors say


def _says_no_such_table(error: BaseException) -> bool:
    return "no such table" in str(error)


def _has_state_undefined_table(error: BaseException) -> bool:
    return "42P01" in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None))


def _has_number_no_such_table(error: BaseException) -> bool:
    return bool(error.args) and error.args[0] == 1146


_MYSQL = Dialect(
    claim=_duplicate_claim,
    confirm=_duplicate_confirm,
    count=_duplicate_count,
    insert_missing=_duplicate_nothing,
    create=create_with_indexes,
    create_inbox=create_with_indexes,
    creates_tables=False,
    present=mysql_tables,
    lacks_table=_has_number_no_such_table,
)

DIALECTS = {
    "sqlite": Dialect(
        claim=_conflict_claim(sqlite.insert),
        confirm=_conflict_confirm(sqlite.insert),
        count=_conflict_count(sqlite.insert),
        insert_missing=_conflict_nothing(sqlite.insert),
        create=create_one_by_one,
        create_inbox=create_one_by_one,
        creates_tables=True,
        takes_turns=True,
        lacks_table=_says_no_such_table,
    ),
    "postgresql": Dialect(
        claim=_conflict_claim(postgresql.insert),
        confirm=_conflict_confirm(postgresql.insert),
        count=_conflict_count(postgresql.insert),
        insert_missing=_conflict_nothing(postgresql.insert),
        create=create_with_bell,
        create_inbox=create_one_by_one,
        creates_tables=True,
        asks_first=True,
        tells_new=True,
        looks_first=True,
        present=relations,
        lock=select(func.pg_advisory_xact_lock(literal_column(str(SET_UP_LOCK)))),
        lacks_table=_has_state_undefined_table,
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}


def dialect_named(name: str) -> Dialect:
    if name not in DIALECTS:
        raise UnsupportedConnection(f"Postroom cannot write to {name!r} databases; known are: {', '.join(DIALECTS)}")
    return DIALECTS[name]


def ddl(name: str, create: Callable[[Dialect], Iterable[ExecutableDDLElement]]) -> str:
    """The SQL of what is created, as a database of that name takes it."""
    try:
        found = URL.create(name).get_dialect()()
        statements = [str(statement.compile(dialect=found)).strip() for statement in create(dialect_named(found.name))]
    except (NoSuchModuleError, CompileError, UnsupportedConnection) as error:
        raise ConfigurationError(f"there is no SQL for the dialect {name!r}: {error}") from error
    return "".join(f"{statement};\n\n" for statement in statements)
