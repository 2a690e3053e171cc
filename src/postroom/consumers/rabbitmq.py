"""RabbitMQ: what pika hands to a callback, and aio-pika's `IncomingMessage`."""

from __future__ import annotations

from typing import Any

from ..wire.received import Received
from ..wire.received import received as read


def received(message: Any, properties: Any = None, body: bytes | None = None) -> Received:
    """`received(method, properties, body)` with pika, `received(message)` with aio-pika. The topic is the routing key,
    unless the message says another."""
    source = message if properties is None else properties
    return read(
        source.headers,
        message.body if properties is None else body,
        topic=message.routing_key or "",
        content_type=source.content_type,
    )
