"""What makes the tables, and changes nothing where they exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from sqlalchemy import Index, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateSequence, CreateTable, ExecutableDDLElement

from ..stores.postgresql_archive import create_archive
from ..stores.schema import Tables


class Family(Protocol):
    """The tables of one outbox, or of one inbox."""

    def all(self) -> list[Table]: ...


def create_one_by_one(tables: Family) -> Iterator[ExecutableDDLElement]:
    for table in tables.all():
        yield from _create(table)


def create_with_bell(tables: Tables) -> Iterator[ExecutableDDLElement]:
    """For PostgreSQL, with an archive that is divided into days."""
    for table in tables.all():
        yield from create_archive(tables) if table is tables.archive else _create(table)
    yield CreateSequence(tables.bell, if_not_exists=True)


def _create(table: Table) -> Iterator[ExecutableDDLElement]:
    yield CreateTable(table, if_not_exists=True)
    for index in _indexes(table):
        yield CreateIndex(index, if_not_exists=True)


def create_with_indexes(tables: Family) -> Iterator[ExecutableDDLElement]:
    for table in tables.all():
        yield CreateTableWithIndexes(table, if_not_exists=True)


class CreateTableWithIndexes(CreateTable):
    """For MySQL, which has no CREATE INDEX IF NOT EXISTS."""


@compiles(CreateTableWithIndexes, "mysql", "mariadb")
def _create_with_indexes(create: CreateTableWithIndexes, compiler: Any, **kw: Any) -> str:
    text: str = compiler.visit_create_table(create, **kw)
    columns, end, options = text.rpartition("\n)")
    indexes = [_definition(index, compiler) for index in _indexes(create.element)]
    return ", \n\t".join([columns, *indexes]) + end + options


def _definition(index: Index, compiler: Any) -> str:
    columns = ", ".join(compiler.preparer.format_column(column) for column in index.columns)
    return f"INDEX {compiler.preparer.quote(str(index.name))} ({columns})"


def _indexes(table: Table) -> list[Index]:
    return sorted(table.indexes, key=lambda index: str(index.name))
