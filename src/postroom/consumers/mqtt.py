"""MQTT 5: a message of paho-mqtt, and of aiomqtt, which is used alike."""

from __future__ import annotations

from typing import Any

from ..wire.received import Received
from ..wire.received import received as read


def received(message: Any) -> Received:
    """Headers are user properties. The topic is the broker's, unless the message says another."""
    properties = message.properties
    headers: dict[str, str] = dict(getattr(properties, "UserProperty", None) or ())
    if "specversion" in headers:  # the binding of CloudEvents has no prefix here
        headers |= {f"ce-{name}": value for name, value in headers.items()}
    content_type: str | None = getattr(properties, "ContentType", None)
    return read(headers, message.payload, topic=str(message.topic), content_type=content_type)
