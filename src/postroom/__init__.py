"""Postroom: the transactional outbox for Python.

Write messages in the transaction that changes your data (`Outbox`), deliver them afterwards (`Relay`), look after them
(`Desk`).
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
    PostroomError,
    RelayError,
    SchemaMismatch,
    SerializationError,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    TablesMissing,
    UnsupportedConnection,
)
from .message import TOMBSTONE, Message
from .outbox import Outbox
from .relay import Relay, Report
from .retry import ByError, ByType, Exponential, Fixed, Immediate, Never, Steps
from .settings import Settings

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - in the order of the flow
    "Outbox",
    "Message",
    "TOMBSTONE",
    "Relay",
    "Report",
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
    "RelayError",
    "SchemaMismatch",
    "SerializationError",
    "StoreError",
    "StoreReplaced",
    "StoreUnavailable",
    "TablesMissing",
    "UnsupportedConnection",
]
