"""Tables made, seeded and checked."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import func, select, update

from ..errors import ConfigurationError, SchemaMismatch, TablesMissing
from ..message import SLOTS
from ..ports import Meta
from . import pending, schema
from .sql_claims import change_over
from .sql_transaction import Transaction

NO_CLAIM = ""
NOT_COUNTED = ""

UPGRADES: dict[int, Callable[[Transaction], None]] = {}
"""By version: what makes tables of that version ones of the next, besides creating what is missing. It must be harmless
to do it again, for MySQL cannot undo half of it."""


def seeds_of_this_version() -> dict[str, str]:
    """The first rows of the meta table, all that it ever has: a relay needs no right to insert there. The epoch is the
    counter all leases take theirs from."""
    return {**_versions(), "claim": NO_CLAIM, "epoch": "0", pending.NAME: NOT_COUNTED}


def _versions() -> dict[str, str]:
    return {"version": str(schema.VERSION), "min_compatible": str(schema.MIN_COMPATIBLE)}


def is_set_up(transaction: Transaction, create_tables: bool) -> bool:
    """Whether everything is there that must be: then opening the store writes nothing."""
    if _missing_tables(transaction) or not transaction.dialect.is_complete(transaction):
        return False
    seeds = _read_seeds(transaction)
    is_behind = create_tables and _number(seeds, "version") < schema.VERSION
    return seeds_of_this_version().keys() <= seeds.keys() and _has_slots(transaction) and not is_behind


def set_up(transaction: Transaction, create_tables: bool) -> None:
    """Create what is missing. Whoever made the tables (an application, a migration) need not have made the rows."""
    transaction.dialect.begin_set_up(transaction)
    try:
        _set_up(transaction, create_tables)
    finally:
        transaction.dialect.end_set_up(transaction)


def _set_up(transaction: Transaction, create_tables: bool) -> None:
    missing = _missing_tables(transaction)
    if missing and not create_tables:
        raise TablesMissing(f"there is no table {missing[0]}: run 'postroom init', or open with create_tables=True")
    tables = transaction.tables
    if tables.meta.name not in missing:
        check_code(_read_seeds(transaction))
    if create_tables:
        transaction.dialect.create(transaction)
    _seed(transaction)
    if create_tables:
        _upgrade(transaction)


def read_meta(transaction: Transaction) -> Meta:
    seeds = _read_seeds(transaction)
    return Meta(int(seeds["version"]), int(seeds["min_compatible"]), seeds["claim"])


def check_code(seeds: dict[str, str]) -> None:
    """What the tables require of the code. Newer ones are fine as long as they say so: that is a rolling deploy."""
    version, needed = _number(seeds, "version"), _number(seeds, "min_compatible")
    if needed > schema.VERSION:
        raise SchemaMismatch(
            f"the tables have version {version} and need code that knows {needed}, this Postroom knows "
            f"{schema.VERSION}: upgrade postroom"
        )


def check_tables(seeds: dict[str, str]) -> None:
    """What the code requires of the tables."""
    version = _number(seeds, "version")
    if version < schema.OLDEST_TABLES:
        raise SchemaMismatch(
            f"the tables have version {version}, this Postroom needs {schema.OLDEST_TABLES}: run 'postroom init'"
        )


def _number(seeds: dict[str, str], name: str) -> int:
    """Rows that are missing are about to be written by this code."""
    try:
        return int(seeds.get(name, _versions()[name]))
    except ValueError:
        raise SchemaMismatch(
            f"the tables say that their {name} is {seeds[name]!r}: is that Postroom's table?"
        ) from None


def check(transaction: Transaction) -> None:
    seeds = _read_seeds(transaction)
    check_code(seeds)
    check_tables(seeds)


def set_claim(transaction: Transaction, claim: str) -> None:
    """The first relay sets it; all others must agree."""
    meta = transaction.tables.meta
    unset = update(meta).where(meta.c.name == "claim", meta.c.value == NO_CLAIM)
    if transaction.changed(unset.values(value=claim)):
        change_over(transaction, claim)
    kept = read_meta(transaction).claim
    if kept != claim:
        raise ConfigurationError(
            f"the relays of this outbox use claim {kept!r}, this one {claim!r}: stop them all before you change it"
        )


def _missing_tables(transaction: Transaction) -> list[str]:
    there = transaction.dialect.table_names(transaction)
    return [table.name for table in transaction.tables.all() if table.name not in there]


def _read_seeds(transaction: Transaction) -> dict[str, str]:
    return {row.name: row.value for row in transaction.rows(select(transaction.tables.meta))}


def _has_slots(transaction: Transaction) -> bool:
    return transaction.run(select(func.count()).select_from(transaction.tables.leases)).scalar_one() >= SLOTS


def _seed(transaction: Transaction) -> None:
    insert_missing, tables = transaction.dialect.insert_missing, transaction.tables
    seeds = seeds_of_this_version()
    transaction.run(insert_missing(tables.meta), [{"name": name, "value": value} for name, value in seeds.items()])
    transaction.run(insert_missing(tables.leases), [{"slot": slot, "epoch": 0, "mark": 0} for slot in range(SLOTS)])


def _upgrade(transaction: Transaction) -> None:
    """Step by step, as far as this code goes. Never back: newer code may have been here first."""
    version, meta = _number(_read_seeds(transaction), "version"), transaction.tables.meta
    for step in range(version, schema.VERSION):
        if step not in UPGRADES:
            raise SchemaMismatch(
                f"the tables have version {version}, and this Postroom knows no way from {step} to {step + 1}: run "
                "'postroom init' of the releases in between"
            )
        UPGRADES[step](transaction)
    for name, value in _versions().items() if version < schema.VERSION else ():
        transaction.run(update(meta).where(meta.c.name == name).values(value=value))
