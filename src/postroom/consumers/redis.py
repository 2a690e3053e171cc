"""Redis and Valkey: the entry of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..wire.received import Received
from ..wire.received import received as read


def received(fields: Mapping[Any, Any], *, stream: str | bytes = "", payload: str = "payload") -> Received:
    """The fields of an entry, as texts or bytes. The topic is the stream, unless the message says another; `payload` is
    the field that has it. A client that decodes everything gives text, which only payloads that are text survive."""
    headers = {name.decode() if isinstance(name, bytes) else name: value for name, value in fields.items()}
    body = headers.pop(payload, None)
    return read(
        headers,
        body.encode() if isinstance(body, str) else body,
        topic=stream.decode() if isinstance(stream, bytes) else stream,
    )
