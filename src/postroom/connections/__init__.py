"""What a caller may hand to `add` and `first_time`: one small file per kind of connection.

A kind is recognised by the name of its class and of the package it comes from, so that no library is imported for
somebody who does not use it. Its file has some of these functions, and imports whatever it likes:

    run(connection, clerk, what)                 for `Outbox.add` and `Inbox.first_time`: at once, in its transaction
    run_async(connection, clerk, what)           for `Outbox.add_async` and `Inbox.first_time_async`, a coroutine
    create(connection, clerk)                    for `create_tables`
    create_async(connection, clerk)              for `create_tables_async`, a coroutine
    write(connection, writer, rows)              for `Outbox.add`, if that is something else than `run`
    write_async(connection, writer, rows)        for `Outbox.add_async`, likewise

To add one: a row in `KINDS`, a file that runs `clerk.procedure` through `drive` or `drive_async`, and ten lines in one
of `tests/contract/test_connections*.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from ..errors import UnsupportedConnection

Verb = Literal["run", "run_async", "create", "create_async", "write", "write_async"]

_CALLS: dict[Verb, str] = {"run": "inbox.first_time", "create": "outbox.create_tables", "write": "outbox.add"}
"""What a verb is for, if nothing else is said."""
_TWINS: dict[Verb, Verb] = {
    "run": "run_async",
    "run_async": "run",
    "create": "create_async",
    "create_async": "create",
    "write": "write_async",
    "write_async": "write",
}
_PLAIN: dict[Verb, Verb] = {"write": "run", "write_async": "run_async"}
"""What writing is, where a file has no other way."""


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
    all_verbs: set[Verb] = {*verbs, *(verb for verb, plain in _PLAIN.items() if plain in verbs)}
    return Kind(package=package, name=name, label=label, file=file, verbs=frozenset(all_verbs), hint=hint)


_BEGIN = "it would begin a transaction of its own: hand over the connection of `with engine.begin() as connection`"
_ACQUIRE = "your data is written through one of its connections: hand over that one, within its transaction"
_PSYCOPG_3 = "install psycopg 3 (Django takes it if it is there), or hand over a connection of SQLAlchemy"

KINDS = (
    _kind("sqlalchemy", "Session", "SQLAlchemy Session", "session", "run"),
    _kind("sqlalchemy", "scoped_session", "SQLAlchemy scoped_session", "session", "run"),
    _kind("sqlalchemy", "AsyncSession", "SQLAlchemy AsyncSession", "session", "run_async", "write"),
    _kind("sqlalchemy", "async_scoped_session", "SQLAlchemy async_scoped_session", "session", "run_async", "write"),
    _kind("sqlalchemy", "Connection", "SQLAlchemy Connection", "sqlalchemy", "run", "create"),
    _kind("sqlalchemy", "AsyncConnection", "SQLAlchemy AsyncConnection", "sqlalchemy", "run_async", "create_async"),
    _kind("sqlalchemy", "Engine", "SQLAlchemy Engine", "sqlalchemy", "create", hint=_BEGIN),
    _kind("sqlalchemy", "AsyncEngine", "SQLAlchemy AsyncEngine", "sqlalchemy", "create_async", hint=_BEGIN),
    _kind("sqlite3", "Connection", "sqlite3 connection", "sqlite3", "run", "create"),
    _kind("aiosqlite", "Connection", "aiosqlite connection", "aiosqlite", "run_async", "create_async"),
    _kind("psycopg", "Connection", "psycopg Connection", "psycopg", "run", "create"),
    _kind("psycopg", "AsyncConnection", "psycopg AsyncConnection", "psycopg", "run_async", "create_async"),
    _kind("psycopg_pool", "ConnectionPool", "psycopg ConnectionPool", "psycopg", hint=_ACQUIRE),
    _kind("psycopg_pool", "AsyncConnectionPool", "psycopg AsyncConnectionPool", "psycopg", hint=_ACQUIRE),
    _kind("psycopg2", "connection", "psycopg2 connection", "psycopg", hint=_PSYCOPG_3),
    _kind("asyncpg", "Connection", "asyncpg connection", "asyncpg", "run_async", "create_async"),
    _kind("asyncpg", "PoolConnectionProxy", "asyncpg pooled connection", "asyncpg", "run_async", "create_async"),
    _kind("asyncpg", "Pool", "asyncpg pool", "asyncpg", hint=_ACQUIRE),
    _kind("pymysql", "Connection", "PyMySQL connection", "pymysql", "run", "create"),
    _kind("MySQLdb", "Connection", "mysqlclient connection", "pymysql", "run", "create"),
    _kind("aiomysql", "Connection", "aiomysql connection", "aiomysql", "run_async", "create_async"),
    _kind("aiomysql", "Pool", "aiomysql pool", "aiomysql", hint=_ACQUIRE),
    _kind("asyncmy", "Connection", "asyncmy connection", "aiomysql", "run_async", "create_async"),
    _kind("asyncmy", "Pool", "asyncmy pool", "aiomysql", hint=_ACQUIRE),
    _kind("django", "ConnectionProxy", "Django connection", "django", "run", "create"),
    _kind("django", "BaseDatabaseWrapper", "Django connection", "django", "run", "create"),
    _kind("postroom", "MemoryTransaction", "transaction of a memory store", "memory", "run"),
)

_BY_CLASS = {(kind.package, kind.name): kind for kind in KINDS}


def function_for(connection: object, verb: Verb, call: str | None = None) -> Callable[..., Any]:
    """The function that does this with connections of this kind, or an error that says what to do instead. `call` is
    what the caller would have called, for that."""
    return _function(type(connection), verb, call)


def kind_of(connection: object) -> Kind | None:
    return _recognise(type(connection))


@lru_cache(maxsize=256)
def _function(cls: type, verb: Verb, call: str | None) -> Callable[..., Any]:
    kind = _recognise(cls)
    if kind is None:
        raise UnsupportedConnection(
            f"{_name(cls)} is no connection that Postroom knows; known are: {_known(verb, call)}"
        )
    if verb not in kind.verbs:
        raise UnsupportedConnection(_refusal(kind, verb, call))
    file = import_module(f"{__name__}.{kind.file}")
    return getattr(file, verb if hasattr(file, verb) else _PLAIN[verb])


def _recognise(cls: type) -> Kind | None:
    for ancestor in cls.__mro__:
        package = ancestor.__module__.partition(".")[0]
        if kind := _BY_CLASS.get((package, ancestor.__name__)):
            return kind
    return None


def _refusal(kind: Kind, verb: Verb, call: str | None) -> str:
    if kind.hint and not verb.startswith("create"):
        return f"{kind.label} cannot be used for `{_spelled(verb, call)}`: {kind.hint}"
    twin = _TWINS[verb]
    if twin in kind.verbs:
        colour = "synchronous" if verb.endswith("async") else "asynchronous"
        return f"{kind.label} is {colour}: use `{_spelled(twin, call)}`"
    return f"{kind.label} cannot be used for `{_spelled(verb, call)}`; use one of: {_known(verb, call)}"


def _known(verb: Verb, call: str | None) -> str:
    """Those for this call first, then those for its twin."""
    own = dict.fromkeys(kind.label for kind in KINDS if verb in kind.verbs)
    twin = dict.fromkeys(kind.label for kind in KINDS if _TWINS[verb] in kind.verbs and kind.label not in own)
    return f"{', '.join(own)}; and for `{_spelled(_TWINS[verb], call)}`: {', '.join(twin)}"


def _spelled(verb: Verb, call: str | None) -> str:
    if verb.endswith("async"):
        return f"await {call or _CALLS[_TWINS[verb]]}_async(connection, …)"
    return f"{call or _CALLS[verb]}(connection, …)"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
