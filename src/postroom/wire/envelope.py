"""What travels with a payload: Postroom's own headers, or the attributes of a CloudEvent."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from ..errors import ConfigurationError, MessageRejected
from ..message import NOTHING_HEADER, TOMBSTONE_HEADER, Message

Format = Literal["postroom", "cloudevents", "structured"]
"""`postroom`: the payload as it is, and headers of ours. `cloudevents`: the payload as it is, and the attributes of a
CloudEvent as headers (its binary mode). `structured`: both in one JSON document."""

FORMATS: tuple[str, ...] = get_args(Format)
DEFAULT_SOURCE = "/postroom"
STRUCTURED = "application/cloudevents+json"
CONTENT_TYPE = "content-type"
"""The header, where a protocol has no other place for it."""
TRACE = ("traceparent", "tracestate")


class Wrapped(NamedTuple):
    headers: dict[str, str]
    payload: bytes | None
    content_type: str | None


class Envelope:
    """Wraps messages. `prefix` is what a protocol's binding of CloudEvents puts before the names of attributes."""

    def __init__(self, format: str = "postroom", source: str = DEFAULT_SOURCE, *, prefix: str = "ce-") -> None:
        if format not in FORMATS:
            raise ConfigurationError(f"format={format!r} must be one of {', '.join(FORMATS)}")
        if not source:
            raise ConfigurationError("the source of a CloudEvent must not be empty")
        self._source = source
        self._prefix = prefix
        kinds = {"postroom": _as_it_is, "cloudevents": self._binary, "structured": self._structured}
        self.wrap: Callable[[Message], Wrapped] = kinds[format]

    def _binary(self, message: Message) -> Wrapped:
        attributes = {f"{self._prefix}{name}": value for name, value in self._attributes(message).items()}
        return Wrapped({**message.headers, **attributes}, payload_of(message), message.content_type)

    def _structured(self, message: Message) -> Wrapped:
        event = self._attributes(message)
        if message.content_type is not None:
            event["datacontenttype"] = message.content_type
        try:
            attributes = json.dumps(event, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise MessageRejected(f"it cannot be sent like this: {error}", permanent=True) from None
        return Wrapped(dict(message.headers), b"%b%b}" % (attributes[:-1], _data(message)), STRUCTURED)

    def _attributes(self, message: Message) -> dict[str, str]:
        attributes = {
            "specversion": "1.0",
            "id": message.id,
            "source": self._source,
            "type": message.type or message.topic,
            "postroomepoch": str(message.epoch),
        }
        if message.created_at is not None:
            attributes["time"] = message.created_at.isoformat()
        if message.key is not None:
            attributes["partitionkey"] = message.key
        if message.sequence is not None:
            attributes["sequence"] = str(message.sequence)
            attributes["postroomgeneration"] = str(message.generation)
            attributes["postroomtopic"] = message.topic
            if TOMBSTONE_HEADER in message.headers:
                attributes["postroomtombstone"] = "1"
        if message.replays:
            attributes["postroomreplay"] = str(message.replays)
        return attributes | {name: message.headers[name] for name in TRACE if name in message.headers}


def _as_it_is(message: Message) -> Wrapped:
    return Wrapped(message.wire_headers(), payload_of(message), message.content_type)


def payload_of(message: Message) -> bytes | None:
    """None if it was written without one, which the database has no other place for than a header."""
    return None if not message.payload and NOTHING_HEADER in message.headers else message.payload


def _data(message: Message) -> bytes:
    """The last member of the document. JSON is put there as it is: read and written again, its numbers would change."""
    payload = payload_of(message)
    if payload is None:
        return b""
    if is_json(message.content_type) and _is_really_json(payload):
        return b', "data": %b' % payload
    return b', "data_base64": "%b"' % base64.b64encode(payload)


def _is_really_json(payload: bytes) -> bool:
    try:
        json.loads(payload.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def is_json(content_type: str | None) -> bool:
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))
