"""The observer that writes to the standard `logging`, under the name `postroom`."""

from __future__ import annotations

import logging
import math

from .. import events

log = logging.getLogger("postroom")


class LoggingObserver:
    """Trouble at warning or error, changes at info, the daily flow at debug. Payloads and headers are never logged."""

    def notice(self, event: events.Event) -> None:
        match event:
            case events.Delivered() | events.Fetched() | events.Published() | events.Cleaned() | events.Parked():
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s", _daily(event))
            case events.Retried(message=message, was_tried=False):
                log.warning(
                    "%s: message %s (%s, key %r) waits, next in %.3g s: %s",
                    event.outbox, message.id, message.topic, message.key, event.delay, event.error,
                )  # fmt: skip
            case events.Retried(message=message):
                log.warning(
                    "%s: message %s (%s, key %r) failed at attempt %d, next in %.3g s: %s",
                    event.outbox, message.id, message.topic, message.key, message.attempt, event.delay, event.error,
                )  # fmt: skip
            case events.Died(message=message):
                log.error(
                    "%s: message %s (%s, key %r) is dead (%s)%s: %s",
                    event.outbox, message.id, message.topic, message.key, event.reason,
                    "; its key waits for `revive` or `discard`" if event.holding else "", event.error,
                )  # fmt: skip
            case events.BreakerOpened(pause=math.inf):
                log.error("%s: %s", event.outbox, event.error)
            case events.BreakerOpened():
                log.warning(
                    "%s: destination %s is unavailable, next probe in %.3g s: %s",
                    event.outbox, event.destination, event.pause, event.error,
                )  # fmt: skip
            case events.TopicHeldBack():
                log.warning(
                    "%s: destination %s takes nothing of topic %s, though it takes others; next try in %.3g s: %s",
                    event.outbox, event.destination, event.topic, event.pause, event.error,
                )  # fmt: skip
            case events.OutOfOrder(message=message):
                log.error(
                    "%s: destination %s delivered message %s although one before it in key %r failed",
                    event.outbox, event.destination, message.id, message.key,
                )  # fmt: skip
            case events.LeasesLost():
                log.warning("%s: lost the leases of slots %s", event.outbox, list(event.slots))
            case events.StoreDown():
                away = event.error.startswith("StoreUnavailable")
                what = "does not answer, waiting for it" if away else "cannot be used, trying again"
                log.error("%s: the database %s: %s", event.outbox, what, event.error)
            case _:
                log.info("%s", _plain(event))


def _daily(event: events.Event) -> str:
    if isinstance(event, events.Delivered):
        return f"{event.outbox}: delivered {len(event.messages)}"
    return _plain(event)


def _plain(event: events.Event) -> str:
    facts = ", ".join(f"{name}={getattr(event, name)}" for name in event.__slots__)
    return f"{event.outbox}: {type(event).__name__} {facts}".rstrip()
