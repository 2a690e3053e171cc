"""What `Inbox` promises on every kind of connection.

`InboxContract` is a `ConnectionContract` with further tests: say how a transaction and a savepoint of that kind are
made. `SqlInboxContract` is for databases that SQLAlchemy can read, `ServerInboxContract` for those with several writers
at once.
"""

from __future__ import annotations

from .kit import numbered
from .once import OnceContract
from .replies import RepliesContract
from .servers import Several
from .sql import WithTables
from .strict import StrictContract
from .upkeep import UpkeepContract

__all__ = ["InboxContract", "ServerInboxContract", "SqlInboxContract", "numbered"]


class InboxContract(OnceContract, StrictContract, RepliesContract, UpkeepContract):
    """The tests that each kind of connection must pass."""


class SqlInboxContract(InboxContract, WithTables):
    """For databases that SQLAlchemy can read."""


class ServerInboxContract(SqlInboxContract, Several):
    """For databases with several writers at once."""
