"""What a doctor looks at in an SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..ports import Finding
from .checkup import fine, problem, warning
from .sql_transaction import Transaction

OLDEST_SUPPORTED = (3, 35)
LARGE = 256 * 2**20
"""Bytes above which the file is not read through: everybody would wait for it."""


def server(transaction: Transaction) -> Finding:
    version = _ask(transaction, "SELECT sqlite_version()")
    if tuple(map(int, version.split(".")[:2])) >= OLDEST_SUPPORTED:
        return fine("server", f"SQLite {version}")
    return warning("server", f"SQLite {version}, on which Postroom is not tested", "use a newer Python")


def journal(transaction: Transaction) -> Finding:
    mode = _ask(transaction, "PRAGMA journal_mode")
    if mode in ("wal", "memory"):
        return fine("journal", f"its mode is {mode}")
    seen = f"its mode is {mode}, not wal: readers and the writer wait for each other"
    return warning("journal", seen, "let a relay that may write open it, or run PRAGMA journal_mode = WAL")


def integrity(transaction: Transaction) -> Finding:
    size = int(_ask(transaction, "PRAGMA page_count")) * int(_ask(transaction, "PRAGMA page_size"))
    if size > LARGE:
        return fine("integrity", f"not looked at, the file has {size} bytes; PRAGMA quick_check does")
    said = _ask(transaction, "PRAGMA quick_check(1)")
    if said == "ok":
        return fine("integrity", "the file is whole")
    return problem("integrity", f"the file is damaged: {said}", "stop everything that writes, and restore a backup")


def _ask(transaction: Transaction, question: str) -> str:
    return str(transaction.connection.exec_driver_sql(question).scalar_one())


CHECKS: Mapping[str, Callable[[Transaction], Finding]] = {
    "server": server,
    "journal": journal,
    "integrity": integrity,
}
