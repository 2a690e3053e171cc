"""What a doctor looks at on MySQL and MariaDB: old transactions, what purge has left to do, the server's limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import text

from ..duration import spell
from ..ports import Finding
from . import sql_doctor
from .checkup import fine, warning
from .sql_transaction import Transaction

OLDEST_SUPPORTED = {"MariaDB": (10, 6), "MySQL": (8, 0)}
OLD = 300.0
"""Seconds after which an open transaction is a nuisance."""
LONG_HISTORY = 1_000_000
"""Old versions of rows that purge has not removed yet."""
SMALL_PACKET = 4 * 2**20
"""Payloads are sent as hexadecimal text, and may have 1 MiB."""
MUCH_FREE = 2**30

VERSION = text("SELECT version()")
TRANSACTION = text("""
    SELECT trx_mysql_thread_id AS thread, timestampdiff(SECOND, trx_started, now()) AS age
    FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id() ORDER BY trx_started LIMIT 1""")
HISTORY = text("SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
SIZES = text("""
    SELECT table_rows AS live, data_length + index_length AS used, data_free AS free FROM information_schema.tables
    WHERE table_schema = coalesce(:place, database()) AND table_name = :hot""")
VARIABLES = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation', 'max_allowed_packet')"
)


def server(transaction: Transaction) -> Finding:
    version = str(transaction.run(VERSION).scalar_one())
    product = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    seen = f"{product} {version}"
    if numbers_of(version) >= OLDEST_SUPPORTED[product]:
        return fine("server", seen)
    oldest = ".".join(map(str, OLDEST_SUPPORTED[product]))
    return warning("server", f"{seen}, on which Postroom is not tested", f"upgrade to {product} {oldest} or later")


def numbers_of(version: str) -> tuple[int, ...]:
    """Of the version proper: MariaDB may say `5.5.5-` before it, for old clients."""
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def transactions(transaction: Transaction) -> Finding:
    oldest: Any = transaction.run(TRANSACTION).first()
    if oldest is None or oldest.age <= OLD:
        return fine("transactions", "none has been open for long")
    seen = f"connection {oldest.thread} has had one open for {spell(int(oldest.age))}; old rows pile up meanwhile"
    return warning("transactions", seen, f"end it: KILL {oldest.thread}")


def history(transaction: Transaction) -> Finding:
    length = int(transaction.run(HISTORY).scalar() or 0)
    seen = f"{length} old versions of rows wait to be purged"
    if length <= LONG_HISTORY:
        return fine("history", seen)
    return warning("history", seen, "end old transactions; then give purge the time, or more innodb_purge_threads")


def bloat(transaction: Transaction) -> Finding:
    hot = transaction.tables.hot
    sizes: Any = transaction.run(SIZES, {"place": hot.schema, "hot": hot.name}).one()
    seen = f"the outbox has about {sizes.live} rows in {sizes.used} bytes, {sizes.free} bytes are free"
    if sizes.free <= MUCH_FREE or sizes.free <= 10 * sizes.used:
        return fine("bloat", seen)
    return warning("bloat", seen, f"OPTIMIZE TABLE {hot.fullname} when there is little to do")


def isolation(transaction: Transaction) -> Finding:
    variables = _variables(transaction)
    level = variables.get("transaction_isolation", variables.get("tx_isolation", "unknown"))
    return fine("isolation", f"by default {level}")


def packet(transaction: Transaction) -> Finding:
    size = int(_variables(transaction)["max_allowed_packet"])
    seen = f"max_allowed_packet is {size} bytes"
    if size >= SMALL_PACKET:
        return fine("packet", seen)
    return warning("packet", seen, f"set it to {SMALL_PACKET} or more, or Outbox(max_payload=…) to a third of it")


def _variables(transaction: Transaction) -> dict[str, str]:
    return dict(transaction.rows(VARIABLES))


CHECKS: Mapping[str, Callable[[Transaction], Finding]] = {
    "server": server,
    "transactions": transactions,
    "history": history,
    "bloat": bloat,
    "isolation": isolation,
    "packet": packet,
    "clock": sql_doctor.clock,
}
