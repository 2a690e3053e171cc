"""Why Postroom is not first in a measure of the peers, where that is known. Shown only when it is not. Words only."""

REASONS = {
    "enqueue, session": "A session's messages are collected, and written by one insert right before its commit, after "
    "its own flush: so they get their places while the session holds its locks, and a rollback to a savepoint takes "
    "along those that were added since. Collecting them and listening for the end of the transaction costs something "
    "even if there is only one message; an insert at once, as faststream-outbox makes it, does not.",
}
"""By measure."""
