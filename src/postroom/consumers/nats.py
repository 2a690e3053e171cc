"""NATS: a `Msg` of nats-py."""

from __future__ import annotations

from typing import Any

from ..wire.received import Received
from ..wire.received import received as read

DEDUPE_HEADER = "Nats-Msg-Id"
"""The broker's own."""


def received(message: Any) -> Received:
    """The topic is the subject, unless the message says another."""
    given: dict[str, str] = message.headers or {}
    headers = {name: value for name, value in given.items() if name != DEDUPE_HEADER}
    return read(headers, message.data, topic=message.subject)
