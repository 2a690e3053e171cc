"""Tables made, seeded and checked."""

from __future__ import annotations

from sqlalchemy import func, inspect, select, update

from ..errors import ConfigurationError, SchemaMismatch, TablesMissing
from ..message import SLOTS
from ..ports import Meta
from .schema import MIN_COMPATIBLE, VERSION
from .sql_transaction import Transaction

NO_CLAIM = ""

SEEDS = {"version": str(VERSION), "min_compatible": str(MIN_COMPATIBLE), "claim": NO_CLAIM, "epoch": "0"}
"""The first rows of the meta table. The epoch is the counter all leases take theirs from."""


def is_set_up(transaction: Transaction) -> bool:
    """Whether every table and every row that must be there is: then opening the store writes nothing."""
    if _missing_tables(transaction) or not transaction.dialect.is_complete(transaction):
        return False
    return SEEDS.keys() <= _read_seeds(transaction).keys() and _has_slots(transaction)


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
        check_version(_read_seeds(transaction))
    if create_tables:
        transaction.dialect.create(transaction)
    _seed(transaction)


def read_meta(transaction: Transaction) -> Meta:
    seeds = _read_seeds(transaction)
    return Meta(int(seeds["version"]), int(seeds["min_compatible"]), seeds["claim"])


def check_version(seeds: dict[str, str]) -> None:
    version, needed = _number(seeds, "version", VERSION), _number(seeds, "min_compatible", MIN_COMPATIBLE)
    if needed > VERSION:
        raise SchemaMismatch(
            f"the tables have version {version} and need at least {needed}, this Postroom knows {VERSION}: "
            "upgrade postroom"
        )
    if version < MIN_COMPATIBLE:
        raise SchemaMismatch(f"the tables have version {version}, older than {MIN_COMPATIBLE}: run 'postroom init'")


def _number(seeds: dict[str, str], name: str, default: int) -> int:
    try:
        return int(seeds.get(name, default))
    except ValueError:
        raise SchemaMismatch(
            f"the tables say that their {name} is {seeds[name]!r}: is that Postroom's table?"
        ) from None


def check(transaction: Transaction) -> None:
    check_version(_read_seeds(transaction))


def set_claim(transaction: Transaction, claim: str) -> None:
    """The first relay sets it; all others must agree."""
    meta = transaction.tables.meta
    unset = update(meta).where(meta.c.name == "claim", meta.c.value == NO_CLAIM)
    transaction.run(unset.values(value=claim))
    kept = read_meta(transaction).claim
    if kept != claim:
        raise ConfigurationError(
            f"the relays of this outbox use claim {kept!r}, this one {claim!r}: stop them all before you change it"
        )


def _missing_tables(transaction: Transaction) -> list[str]:
    tables = transaction.tables
    there = set(inspect(transaction.connection).get_table_names(schema=tables.hot.schema))
    return [table.name for table in tables.all() if table.name not in there]


def _read_seeds(transaction: Transaction) -> dict[str, str]:
    return {row.name: row.value for row in transaction.rows(select(transaction.tables.meta))}


def _has_slots(transaction: Transaction) -> bool:
    return transaction.run(select(func.count()).select_from(transaction.tables.leases)).scalar_one() >= SLOTS


def _seed(transaction: Transaction) -> None:
    insert_missing, tables = transaction.dialect.insert_missing, transaction.tables
    transaction.run(insert_missing(tables.meta), [{"name": name, "value": value} for name, value in SEEDS.items()])
    transaction.run(insert_missing(tables.leases), [{"slot": slot, "epoch": 0, "mark": 0} for slot in range(SLOTS)])
