"""What a doctor looks at on PostgreSQL: what keeps vacuum from working, and whether the doorbell is heard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Text, bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY

from ..duration import spell
from ..ports import Finding
from . import sql_doctor
from .checkup import counted, fine, problem, warning
from .postgresql_bell import has_bell
from .sql_transaction import Transaction

OLDEST_SUPPORTED = 150_000
OLD = 300.0
"""Seconds after which an open transaction is a nuisance."""
MANY_DEAD = 1_000_000

VERSION = text(
    "SELECT current_setting('server_version') AS name, CAST(current_setting('server_version_num') AS integer) AS number"
)
TRANSACTION = text("""
    SELECT pid, usename, application_name, state,
           CAST(extract(epoch FROM clock_timestamp() - xact_start) AS float8) AS age
    FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND xact_start IS NOT NULL
    ORDER BY xact_start LIMIT 1""")
HIDDEN = text("""
    SELECT count(*) FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database() AND query = '<insufficient privilege>'""")
PREPARED = text("""
    SELECT gid, CAST(extract(epoch FROM clock_timestamp() - prepared) AS float8) AS age
    FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 1""")
REPLICATION = text("""
    SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL AND NOT active LIMIT 1""")
BLOAT = text("""
    SELECT n_live_tup AS live, n_dead_tup AS dead, pg_relation_size(relid) AS bytes,
           current_setting('autovacuum') = 'off'
           OR coalesce('autovacuum_enabled=false' = ANY (reloptions), false) AS is_off,
           CAST(extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum)) AS float8) AS ago
    FROM pg_catalog.pg_stat_all_tables JOIN pg_catalog.pg_class ON pg_class.oid = relid
    WHERE relid = to_regclass(:hot)""")
INVALID = text("""
    SELECT i.relname FROM pg_catalog.pg_index JOIN pg_catalog.pg_class AS i ON i.oid = indexrelid
    WHERE NOT indisvalid AND indrelid IN (SELECT to_regclass(name) FROM unnest(:tables) AS name)""").bindparams(
    bindparam("tables", type_=ARRAY(Text))
)
ISOLATION = text("SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'default_transaction_isolation'")


def server(transaction: Transaction) -> Finding:
    version = transaction.run(VERSION).one()
    seen = f"PostgreSQL {version.name}"
    if version.number >= OLDEST_SUPPORTED:
        return fine("server", seen)
    return warning("server", f"{seen}, on which Postroom is not tested", "upgrade to PostgreSQL 15 or later")


def invalid_indexes(transaction: Transaction) -> Finding:
    """What a CREATE INDEX CONCURRENTLY that failed leaves behind: it is there, and not used."""
    names = [_quoted(table) for table in transaction.tables.all()]
    found = list(transaction.run(INVALID, {"tables": names}).scalars())
    if not found:
        return fine("index validity", "all are valid")
    return problem("index validity", f"invalid: {', '.join(found)}", f"run REINDEX INDEX CONCURRENTLY {found[0]}")


# --- what keeps dead rows from being cleaned up


def transactions(transaction: Transaction) -> Finding:
    oldest: Any = transaction.run(TRANSACTION).first()
    if oldest is not None and oldest.age > OLD:
        who = f"process {oldest.pid} of {oldest.usename} ({oldest.application_name or 'no name'}), {oldest.state}"
        seen = f"one has been open for {spell(int(oldest.age))}: {who}; dead rows pile up meanwhile"
        return warning("transactions", seen, f"end it: SELECT pg_terminate_backend({oldest.pid})")
    if hidden := transaction.run(HIDDEN).scalar_one():
        seen = f"those of {counted(hidden, 'session', 'sessions')} of others we may not see"
        return warning("transactions", seen, "GRANT pg_read_all_stats to this role")
    return fine("transactions", "none has been open for long")


def prepared_transactions(transaction: Transaction) -> Finding:
    oldest: Any = transaction.run(PREPARED).first()
    if oldest is None or oldest.age <= OLD:
        return fine("prepared transactions", "none has been there for long")
    seen = f"{oldest.gid!r} has been prepared for {spell(int(oldest.age))}; its messages, and the mark, wait for it"
    return warning("prepared transactions", seen, f"COMMIT PREPARED or ROLLBACK PREPARED {oldest.gid!r}")


def replication_slots(transaction: Transaction) -> Finding:
    name = transaction.run(REPLICATION).scalar()
    if name is None:
        return fine("replication slots", "no abandoned one keeps rows")
    seen = f"{name!r} is not in use and keeps dead rows from being cleaned up"
    return warning("replication slots", seen, f"start its consumer, or SELECT pg_drop_replication_slot({name!r})")


def bloat(transaction: Transaction) -> Finding:
    table: Any = transaction.run(BLOAT, {"hot": _quoted(transaction.tables.hot)}).one()
    vacuumed = "never vacuumed" if table.ago is None else f"vacuumed {spell(max(0, int(table.ago)))} ago"
    seen = f"the outbox has {table.live} live and {table.dead} dead rows in {table.bytes} bytes, {vacuumed}"
    if table.is_off:
        return warning("bloat", f"{seen}; autovacuum is off", "turn autovacuum on for the server and for this table")
    if table.dead > MANY_DEAD:
        return warning("bloat", seen, "find what keeps vacuum from working, see transactions; then VACUUM the table")
    return fine("bloat", seen)


# --- doorbell and defaults


def doorbell(transaction: Transaction) -> Finding:
    if not has_bell(transaction):
        return problem("doorbell", "the sequence is missing", "run 'postroom init'")
    relays = transaction.tables.relays
    alive = transaction.rows(select(relays.c.id, relays.c.woken_by).where(relays.c.until > transaction.now))
    deaf = sorted(relay.id for relay in alive if relay.woken_by != "doorbell")
    if not deaf:
        return fine("doorbell", "every relay hears it" if alive else "it is there")
    seen = f"{', '.join(deaf)} does not hear it, and looks every poll_interval"
    return warning("doorbell", seen, "let relays connect past a transaction pooler; right after a start, look again")


def isolation(transaction: Transaction) -> Finding:
    return fine("isolation", f"by default {transaction.run(ISOLATION).scalar_one()}")


def of_pooler(is_pooled: bool) -> Finding:
    return fine("pooler", "we are connected through one" if is_pooled else "none in between")


def _quoted(table: Any) -> str:
    names = [name for name in (table.schema, table.name) if name]
    return ".".join('"{}"'.format(name.replace('"', '""')) for name in names)


CHECKS: Mapping[str, Callable[[Transaction], Finding]] = {
    "server": server,
    "index validity": invalid_indexes,
    "transactions": transactions,
    "prepared transactions": prepared_transactions,
    "replication slots": replication_slots,
    "bloat": bloat,
    "doorbell": doorbell,
    "isolation": isolation,
    "clock": sql_doctor.clock,
}
