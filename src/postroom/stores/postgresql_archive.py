"""PostgreSQL's archive, divided into days: what is old goes with its table, at once, however much it is.

A day is a partition named `…archive_YYYYMMDD` (UTC); what no day takes is in `…archive_default`. The table in the
metadata stays a plain one, which a migration may have made: everything works with it too, by deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from sqlalchemy import Index, MetaData, PrimaryKeyConstraint, Table, literal_column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from .schema import Tables


def create_archive(tables: Tables) -> Iterator[ExecutableDDLElement]:
    """Only for a database that has no archive: of what exists it must not be guessed how it was made. All of them have
    the archive itself as their target."""
    divided = _divide(tables)
    yield CreateTable(divided, if_not_exists=True)
    yield CreateDefault(tables.archive)
    for index in sorted(divided.indexes, key=lambda index: str(index.name)):
        create = CreateIndex(index, if_not_exists=True)
        create.target = tables.archive
        yield create


def _divide(tables: Tables) -> Table:
    """The archive as it is created. The time is in the key, so it needs no index of its own; but what is no delivered
    message has one, since it is kept longer than its day."""
    plain = tables.archive
    columns = [column._copy() for column in plain.columns]  # pyright: ignore[reportPrivateUsage] - as `to_metadata` does
    for column in columns:
        column.primary_key = False
    divided = Table(
        plain.name,
        MetaData(),
        *columns,
        PrimaryKeyConstraint("settled_at", "number"),
        schema=plain.schema,
        postgresql_partition_by="RANGE (settled_at)",
    )
    Index(f"{tables.prefix}archive_by_id", divided.c.id)
    is_undelivered = divided.c.outcome != literal_column("'delivered'")
    Index(f"{tables.prefix}archive_undelivered", divided.c.settled_at, postgresql_where=is_undelivered)
    return divided


class _Partition(ExecutableDDLElement):
    def __init__(self, archive: Table, name: str) -> None:
        self.archive = self.target = archive
        self.name = name

    def names(self, compiler: Any) -> tuple[str, str]:
        """Of the archive and of the partition, as they are written in SQL."""
        prepare = compiler.preparer.format_table
        return prepare(self.archive), prepare(self.archive, name=self.name)


class CreateDefault(_Partition):
    def __init__(self, archive: Table) -> None:
        super().__init__(archive, f"{archive.name}_default")


@compiles(CreateDefault)
def _create_default(create: CreateDefault, compiler: Any, **kw: Any) -> str:
    archive, name = create.names(compiler)
    return f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {archive} DEFAULT"


class _Day(_Partition):
    def __init__(self, archive: Table, day: date) -> None:
        super().__init__(archive, name_of(archive, day))
        self.day = day


class CreateDay(_Day):
    """A table that nobody knows of yet. CREATE … PARTITION OF would make all who use the archive wait."""


@compiles(CreateDay)
def _create_day(create: CreateDay, compiler: Any, **kw: Any) -> str:
    archive, name = create.names(compiler)
    return f"CREATE TABLE {name} (LIKE {archive} INCLUDING DEFAULTS INCLUDING STORAGE)"


class AttachDay(_Day):
    pass


@compiles(AttachDay)
def _attach_day(attach: AttachDay, compiler: Any, **kw: Any) -> str:
    archive, name = attach.names(compiler)
    first, last = (f"'{day.isoformat()} 00:00:00+00'" for day in (attach.day, attach.day + timedelta(days=1)))
    return f"ALTER TABLE {archive} ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({last})"


class DetachDay(_Day):
    pass


@compiles(DetachDay)
def _detach_day(detach: DetachDay, compiler: Any, **kw: Any) -> str:
    archive, name = detach.names(compiler)
    return f"ALTER TABLE {archive} DETACH PARTITION {name}"


class DropDay(_Day):
    pass


@compiles(DropDay)
def _drop_day(drop: DropDay, compiler: Any, **kw: Any) -> str:
    return f"DROP TABLE {drop.names(compiler)[1]}"


def name_of(archive: Table, day: date) -> str:
    return f"{archive.name}_{day:%Y%m%d}"


def day_of(archive: Table, name: str) -> date | None:
    """The day of a partition; None for the default one, and for what somebody else made."""
    beginning, _, digits = name.rpartition("_")
    if beginning != archive.name or len(digits) != 8 or not digits.isdecimal():
        return None
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return None
