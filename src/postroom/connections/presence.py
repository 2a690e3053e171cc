"""What is there already, asked in the database itself.

Names are resolved when a statement is compiled, so that SQLAlchemy may translate schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    String,
    Table,
    Text,
    column,
    func,
    literal_column,
    select,
    table,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler


class regclass(ColumnElement[bool]):
    """PostgreSQL: what this name means in the schema of a table, or NULL."""

    type = Boolean()
    inherit_cache = False

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name


@compiles(regclass)
def _to_regclass(element: regclass, compiler: SQLCompiler, **kw: Any) -> str:
    return f"to_regclass({_quoted(compiler.preparer.format_table(element.table, name=element.name))})"


class _schema_of(ColumnElement[str]):
    """MySQL: the name of the schema that a table is in."""

    type = String()
    inherit_cache = False

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(_schema_of)
def _to_schema(element: _schema_of, compiler: SQLCompiler, **kw: Any) -> str:
    preparer: Any = compiler.preparer
    schema: str | None = preparer.schema_for_object(element.table)
    return "database()" if schema is None else _quoted(schema)


def is_older(relation: ColumnElement[Any]) -> ColumnElement[Any]:
    """PostgreSQL: than this transaction. Unknown, if that has no number yet: then it has changed nothing."""
    catalogue = table("pg_class", column("oid"), column("xmin"), schema="pg_catalog")
    own = func.age(literal_column("pg_current_xact_id_if_assigned()::xid"))
    return select(func.age(catalogue.c.xmin) > own).where(catalogue.c.oid == relation).scalar_subquery()


def relations(home: Table, names: Sequence[str]) -> Executable:
    """PostgreSQL: which of these tables, indexes and sequences are there, in the schema of one of them.

    IF NOT EXISTS is not enough: CREATE INDEX locks its table before it looks, and so waits for every open transaction
    that has written, and makes all others wait.
    """
    found = (
        select(literal_column(_quoted(name), Text)).where(regclass(home, name).is_not(None))
        for name in dict.fromkeys(names)
    )
    return union_all(*found)


def mysql_tables(home: Table, names: Sequence[str]) -> Executable:
    """The names of the tables that are there. IF NOT EXISTS gives warnings, which some drivers show."""
    known = table("tables", column("table_name"), column("table_schema"), schema="information_schema")
    return select(known.c.table_name).where(known.c.table_schema == _schema_of(home))


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
