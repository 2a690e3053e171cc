"""Postroom: the transactional outbox for Python.

Write messages in the transaction that changes your data (`Outbox`), deliver them afterwards (`Relay`), run functions
with them (`Tasks`), look after them (`Desk`), and handle each of them once (`Inbox`).
"""

from .desk import Desk
from .errors import (
    ConfigurationError,
    DestinationUnavailable,
    InvalidMessage,
    MessageDead,
    MessageRejected,
    MissingExtra,
    NotAttempted,
    NotFound,
    NoTransactionError,
    OutboxFull,
    PayloadTooLarge,
    Postponed,
    PostroomError,
    RelayError,
    SchemaMismatch,
    SequenceGap,
    SerializationError,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    TablesMissing,
    UnsupportedConnection,
)
from .inbox import Inbox
from .message import TOMBSTONE, Message
from .outbox import Outbox
from .relay import Relay, Report
from .retry import ByError, ByType, Exponential, Fixed, Immediate, Never, Steps
from .settings import Settings
from .tasks import Block, Ignore, Retry, TaskContext, Tasks
from .wire.received import Received, received

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - in the order of the flow
    "Outbox",
    "Message",
    "TOMBSTONE",
    "Tasks",
    "TaskContext",
    "Retry",
    "Block",
    "Ignore",
    "Relay",
    "Report",
    "Inbox",
    "Received",
    "received",
    "Desk",
    "Settings",
    "Steps",
    "Immediate",
    "Fixed",
    "Exponential",
    "Never",
    "ByType",
    "ByError",
    "ConfigurationError",
    "DestinationUnavailable",
    "InvalidMessage",
    "MessageDead",
    "MessageRejected",
    "MissingExtra",
    "NoTransactionError",
    "NotAttempted",
    "NotFound",
    "OutboxFull",
    "PayloadTooLarge",
    "PostroomError",
    "Postponed",
    "RelayError",
    "SchemaMismatch",
    "SequenceGap",
    "SerializationError",
    "StoreError",
    "StoreReplaced",
    "StoreUnavailable",
    "TablesMissing",
    "UnsupportedConnection",
]
