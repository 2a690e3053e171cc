"""CloudEvents: the events of the SDK for Python, of its version 1 and 2."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..wire.received import Received
from ..wire.received import received as read


def received(event: Any, *, topic: str = "", headers: Mapping[str, str] | None = None) -> Received:
    """An event, and the application's headers that came beside it, if they are wanted. Data that the SDK has read from
    JSON is written again, so numbers may be spelled in another way."""
    attributes = {f"ce-{name}": _text(value) for name, value in event.get_attributes().items() if value is not None}
    return read({**(headers or {}), **attributes}, _payload(event.get_data()), topic=topic)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _payload(data: Any) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    return data.encode() if isinstance(data, str) else json.dumps(data, ensure_ascii=False).encode()
