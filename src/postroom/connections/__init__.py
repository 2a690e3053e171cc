"""What a caller may hand to `add`: one small file per kind of connection.

A kind is recognised by the name of its class and of the package it comes from, so that no library is imported for
somebody who does not use it. Its file has some of these functions, and imports whatever it likes:

    write(connection, writer, rows)              for `Outbox.add`
    write_async(connection, writer, rows)        for `Outbox.add_async`, a coroutine
    create(connection, writer)                   for `Outbox.create_tables`
    create_async(connection, writer)             for `Outbox.create_tables_async`, a coroutine

To add one: a row in `KINDS`, a file that runs `writer.procedure` through `drive` or `drive_async`, and ten lines in one
of `tests/contract/test_connections*.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from ..errors import UnsupportedConnection

Verb = Literal["write", "write_async", "create", "create_async"]

_CALLS: dict[Verb, str] = {
    "write": "outbox.add(connection, …)",
    "write_async": "await outbox.add_async(connection, …)",
    "create": "outbox.create_tables(connection)",
    "create_async": "await outbox.create_tables_async(connection)",
}
_TWINS: dict[Verb, Verb] = {
    "write": "write_async",
    "write_async": "write",
    "create": "create_async",
    "create_async": "create",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A class that callers hold, and what its file can do with it."""

    package: str
    name: str
    label: str
    file: str
    verbs: frozenset[Verb]
    hint: str = ""
    """What to hand over instead, where there is something better."""


def _kind(package: str, name: str, label: str, file: str, *verbs: Verb, hint: str = "") -> Kind:
    return Kind(package=package, name=name, label=label, file=file, verbs=frozenset(verbs), hint=hint)


_BEGIN = "it would begin a transaction of its own: hand over the connection of `with engine.begin() as connection`"
_ACQUIRE = "your data is written through one of its connections: hand over that one, within its transaction"

KINDS = (
    _kind("sqlalchemy", "Session", "SQLAlchemy Session", "session", "write"),
    _kind("sqlalchemy", "scoped_session", "SQLAlchemy scoped_session", "session", "write"),
    _kind("sqlalchemy", "AsyncSession", "SQLAlchemy AsyncSession", "session", "write", "write_async"),
    _kind("sqlalchemy", "async_scoped_session", "SQLAlchemy async_scoped_session", "session", "write", "write_async"),
    _kind("sqlalchemy", "Connection", "SQLAlchemy Connection", "sqlalchemy", "write", "create"),
    _kind("sqlalchemy", "AsyncConnection", "SQLAlchemy AsyncConnection", "sqlalchemy", "write_async", "create_async"),
    _kind("sqlalchemy", "Engine", "SQLAlchemy Engine", "sqlalchemy", "create", hint=_BEGIN),
    _kind("sqlalchemy", "AsyncEngine", "SQLAlchemy AsyncEngine", "sqlalchemy", "create_async", hint=_BEGIN),
    _kind("sqlite3", "Connection", "sqlite3 connection", "sqlite3", "write", "create"),
    _kind("aiosqlite", "Connection", "aiosqlite connection", "aiosqlite", "write_async", "create_async"),
    _kind("psycopg", "Connection", "psycopg Connection", "psycopg", "write", "create"),
    _kind("psycopg", "AsyncConnection", "psycopg AsyncConnection", "psycopg", "write_async", "create_async"),
    _kind("psycopg_pool", "ConnectionPool", "psycopg ConnectionPool", "psycopg", hint=_ACQUIRE),
    _kind("psycopg_pool", "AsyncConnectionPool", "psycopg AsyncConnectionPool", "psycopg", hint=_ACQUIRE),
    _kind("asyncpg", "Connection", "asyncpg connection", "asyncpg", "write_async", "create_async"),
    _kind("asyncpg", "PoolConnectionProxy", "asyncpg pooled connection", "asyncpg", "write_async", "create_async"),
    _kind("asyncpg", "Pool", "asyncpg pool", "asyncpg", hint=_ACQUIRE),
    _kind("pymysql", "Connection", "PyMySQL connection", "pymysql", "write", "create"),
    _kind("MySQLdb", "Connection", "mysqlclient connection", "pymysql", "write", "create"),
    _kind("aiomysql", "Connection", "aiomysql connection", "aiomysql", "write_async", "create_async"),
    _kind("aiomysql", "Pool", "aiomysql pool", "aiomysql", hint=_ACQUIRE),
    _kind("asyncmy", "Connection", "asyncmy connection", "aiomysql", "write_async", "create_async"),
    _kind("asyncmy", "Pool", "asyncmy pool", "aiomysql", hint=_ACQUIRE),
    _kind("django", "ConnectionProxy", "Django connection", "django", "write", "create"),
    _kind("django", "BaseDatabaseWrapper", "Django connection", "django", "write", "create"),
    _kind("postroom", "MemoryTransaction", "transaction of a memory store", "memory", "write"),
)

_BY_CLASS = {(kind.package, kind.name): kind for kind in KINDS}


def function_for(connection: object, verb: Verb) -> Callable[..., Any]:
    """The function that does this with connections of this kind, or an error that says what to do instead."""
    return _function(type(connection), verb)


@lru_cache(maxsize=256)
def _function(cls: type, verb: Verb) -> Callable[..., Any]:
    kind = _recognise(cls)
    if kind is None:
        raise UnsupportedConnection(f"{_name(cls)} is no connection that Postroom knows; known are: {_known(verb)}")
    if verb not in kind.verbs:
        raise UnsupportedConnection(_refusal(kind, verb))
    return getattr(import_module(f"{__name__}.{kind.file}"), verb)


def _recognise(cls: type) -> Kind | None:
    for ancestor in cls.__mro__:
        package = ancestor.__module__.partition(".")[0]
        if kind := _BY_CLASS.get((package, ancestor.__name__)):
            return kind
    return None


def _refusal(kind: Kind, verb: Verb) -> str:
    if kind.hint and verb in ("write", "write_async"):
        return f"{kind.label} cannot be used for `{_CALLS[verb]}`: {kind.hint}"
    if _TWINS[verb] in kind.verbs:
        colour = "synchronous" if verb.endswith("async") else "asynchronous"
        return f"{kind.label} is {colour}: use `{_CALLS[_TWINS[verb]]}`"
    return f"{kind.label} cannot be used for `{_CALLS[verb]}`; use one of: {_known(verb)}"


def _known(verb: Verb) -> str:
    """Those for this call first, then those for its twin."""
    own = [kind.label for kind in KINDS if verb in kind.verbs]
    twin = [kind.label for kind in KINDS if _TWINS[verb] in kind.verbs and kind.label not in own]
    return f"{', '.join(own)}; and for `{_CALLS[_TWINS[verb]]}`: {', '.join(twin)}"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
