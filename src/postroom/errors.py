"""Every error Postroom raises, under one root.

Each says what happened, to which message or destination, and what to do about it.
"""

from __future__ import annotations


class PostroomError(Exception):
    """The root of every error raised by Postroom."""


class ConfigurationError(PostroomError):
    """A setting, a URL or a combination of them cannot work."""


class MissingExtra(ConfigurationError):
    """An adapter needs a library that is not installed."""


# --- the write side


class InvalidMessage(PostroomError, ValueError):
    """A message cannot be written, or remembered, as it is: a limit, a type or a time is wrong."""


class PayloadTooLarge(InvalidMessage):
    """The serialised payload is larger than the outbox's `max_payload`."""


class SerializationError(InvalidMessage):
    """A payload cannot be turned into bytes."""


class NoTransactionError(PostroomError):
    """What is written would be committed by itself, apart from the business data it belongs to."""


class OutboxFull(PostroomError):
    """More messages are pending than the outbox's `max_pending` allows; nothing was written."""


class UnsupportedConnection(PostroomError, TypeError):
    """The object given to `add`, or `first_time`, is no connection or session that Postroom knows, or is one for the
    other form of the call."""


# --- the consumer's side


class SequenceGap(PostroomError):
    """A message of a strict stream came before the one that is next. Nothing was changed."""

    def __init__(self, *args: object, expected: int = 0, got: int = 0) -> None:
        super().__init__(*args)
        self.expected = expected
        self.got = got


# --- stores


class StoreError(PostroomError):
    """The database refused or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or is too busy to answer; trying again later may help."""


class StoreReplaced(StoreUnavailable):
    """Another server answers than before, and its history is another: what the old one said may not be true of it."""


class TablesMissing(StoreError):
    """The tables of the outbox, or of the inbox, are not in the database."""


class SchemaMismatch(StoreError):
    """The tables were made by a version of Postroom that this one cannot work with."""


class NotFound(PostroomError, LookupError):
    """No message with that id is known."""


# --- publishers


class DestinationUnavailable(PostroomError):
    """The destination cannot take messages now; no message is to blame and no attempt is counted.

    `retry_after` is the number of seconds the destination asked us to wait, if it did.
    """

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after


class MessageRejected(PostroomError):
    """The destination refused this very message.

    `permanent=True` means that no retry can help: it is dead at once, for the `reason` that is given in a word.
    `retry_in`: seconds after which to try again, whatever the retry policy says.
    """

    def __init__(
        self, *args: object, permanent: bool = False, reason: str = "rejected", retry_in: float | None = None
    ) -> None:
        super().__init__(*args)
        self.permanent = permanent
        self.reason = reason
        self.retry_in = retry_in


class NotAttempted(PostroomError):
    """A publisher did not try this message, because one before it failed or because there was no time left."""


class Postponed(PostroomError):
    """A publisher did not try this message, and wants it again in so many seconds. No attempt is counted."""

    def __init__(self, *args: object, retry_in: float) -> None:
        super().__init__(*args)
        self.retry_in = retry_in


class NoAnswer(PostroomError):
    """A publisher returned without saying what became of this message."""


# --- the relay


class RelayError(PostroomError):
    """The relay was used in a way it cannot work: started twice, used after it was closed."""


class MessageDead(PostroomError):
    """The message that was waited for gave up, or was discarded."""
