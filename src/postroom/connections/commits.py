"""What becomes of the transactions of all ORM sessions, passed on to those that have messages to write.

Listening to all sessions at once costs each less than listening to those that add something. It begins when Postroom is
imported: the list of listeners is walked through by every commit, and must not grow under those that are under way.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

COLLECTOR = "_postroom_collector"
"""The attribute in which a session keeps its own. Its `info` is the application's, to clear, copy and share."""


def collector_of(session: Session) -> Any:
    return getattr(session, COLLECTOR, None)


def is_last_to_hear(session: Session) -> bool:
    """Whether we come after the hooks that everybody else has, and which may change what is to be flushed."""
    *_, last = session.dispatch.before_commit
    return last is _before_commit


def listen() -> None:
    event.listen(Session, "before_commit", _before_commit)
    event.listen(Session, "after_commit", _after_commit)
    event.listen(Session, "after_transaction_end", _after_transaction_end)


def _before_commit(session: Session) -> None:
    if (collector := collector_of(session)) is not None:
        collector.before_commit(session)


def _after_commit(session: Session) -> None:
    if (collector := collector_of(session)) is not None:
        collector.after_commit(session)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    if (collector := collector_of(session)) is not None:
        collector.after_transaction_end(session, transaction)
