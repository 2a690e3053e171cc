"""What an inbox is asked, through any connection: see that the tables are there, and ask."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakSet

from sqlalchemy import Engine

from ..clock import Clock
from ..errors import TablesMissing
from ..stores.inbox_schema import InboxTables
from .dialects import Dialect, create_missing, dialect_named
from .inbox_statements import InboxStatements
from .procedure import Procedure, Step
from .requests import Request

T = TypeVar("T")


class Keeper:
    """One inbox, as far as connections need to know it."""

    kind = "inbox"

    def __init__(
        self, *, name: str, tables: InboxTables, create_tables: bool, clock: Clock | None, bind: Engine | None
    ) -> None:
        self.name = name
        self.tables = tables
        self.create_tables = create_tables
        self.clock = clock
        self.bind = bind
        self._statements: dict[str, InboxStatements] = {}
        self._ready = WeakSet[object]()
        """Connections through which the tables were seen."""

    def procedure(
        self, request: Request[T], dialect_name: str, connection: object = None, place: object = None
    ) -> Procedure[T]:
        """As with messages: nothing is asked before the first write, unless errors abort the transaction."""
        dialect = dialect_named(dialect_name)
        statements = self._statements_for(dialect_name)
        try:
            if dialect.asks_first and connection not in self._ready:
                yield from self._look(statements, dialect_name, connection)
            return (yield from request.through(statements))
        except Exception as error:
            if not self._is_about_tables(error, dialect):
                raise
            if connection in self._ready:
                self._ready.remove(connection)
            if dialect.asks_first or not (self.create_tables and dialect.creates_tables):
                raise self._tables_missing() from error
        yield from self.creation(dialect_name)
        return (yield from request.through(statements))

    def creation(self, dialect_name: str) -> Procedure[None]:
        dialect = dialect_named(dialect_name)
        return create_missing(dialect, self.tables.inbox, dialect.create_inbox(self.tables))

    def _look(self, statements: InboxStatements, dialect_name: str, connection: object) -> Procedure[None]:
        """The tables are there afterwards."""
        ((tables, was_before),) = yield Step(statements.look, returns=True)
        if not tables:
            if not self.create_tables:
                raise self._tables_missing()
            yield from self.creation(dialect_name)
        elif was_before and connection is not None:
            self._ready.add(connection)

    def _is_about_tables(self, error: Exception, dialect: Dialect) -> bool:
        """Whether it says that one of ours is missing: an application's trigger may lack one of its own."""
        cause: BaseException = getattr(error, "orig", None) or error
        return dialect.lacks_table(cause) and self.tables.inbox.name.lower() in str(cause).lower()

    def _statements_for(self, dialect_name: str) -> InboxStatements:
        statements = self._statements.get(dialect_name)
        if statements is None:
            statements = InboxStatements(self.tables, dialect_named(dialect_name), self.clock is not None)
            self._statements[dialect_name] = statements
        return statements

    def _tables_missing(self) -> TablesMissing:
        return TablesMissing(
            f"the tables of inbox {self.name!r} ({self.tables.inbox.fullname} and {self.tables.marks.fullname}) are "
            "not in this database; create them with `postroom inbox init` or `inbox.create_tables(engine)`"
        )
