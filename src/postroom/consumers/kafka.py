"""Kafka: `confluent_kafka.Message`, and aiokafka's `ConsumerRecord`."""

from __future__ import annotations

from typing import Any

from ..wire.received import Received
from ..wire.received import received as read


def received(message: Any) -> Received:
    """A record that was consumed. The key is text, as Postroom sends it."""
    key = _of(message, "key")
    return read(
        _of(message, "headers"),
        _of(message, "value"),
        topic=_of(message, "topic") or "",
        key=key.decode(errors="replace") if isinstance(key, bytes) else key,
    )


def _of(message: Any, name: str) -> Any:
    """An attribute of the one, a method of the other."""
    value = getattr(message, name)
    return value() if callable(value) else value
