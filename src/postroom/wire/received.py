"""A message as a consumer gets it: an envelope, opened. Whatever the broker, it comes down to headers and bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from ..errors import InvalidMessage
from ..message import (
    CREATED_HEADER,
    EPOCH_HEADER,
    GENERATION_HEADER,
    ID_HEADER,
    KEY_HEADER,
    NOTHING_HEADER,
    REPLAY_HEADER,
    SEQUENCE_HEADER,
    TOMBSTONE_HEADER,
    TOPIC_HEADER,
    TYPE_HEADER,
)
from .envelope import CONTENT_TYPE, STRUCTURED, is_json

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]

PREFIXES = ("ce-", "ce_")
"""What the bindings of CloudEvents put before the names of attributes."""

_ATTRIBUTES = {
    "id": ID_HEADER,
    "type": TYPE_HEADER,
    "partitionkey": KEY_HEADER,
    "time": CREATED_HEADER,
    "sequence": SEQUENCE_HEADER,
    "postroomgeneration": GENERATION_HEADER,
    "postroomtopic": TOPIC_HEADER,
    "postroomtombstone": TOMBSTONE_HEADER,
    "postroomepoch": EPOCH_HEADER,
    "postroomreplay": REPLAY_HEADER,
    "datacontenttype": CONTENT_TYPE,
}
"""Attributes of a CloudEvent, and the headers that say the same."""
_FIELDS = frozenset({*_ATTRIBUTES.values(), NOTHING_HEADER})
_SOURCE = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message that arrived.

    `headers` are the application's own, and those of Postroom's that have no field here. `topic` is the outbox's in
    strict order, else what the broker says: a queue, a stream, a subject. `sequence` and `generation` are there in
    strict order. A tombstone stands for a message that was discarded: it has nothing but its number.
    `source` is that of a CloudEvent; with events of others, an id is unique only together with it.
    """

    id: str
    topic: str = ""
    payload: bytes | None = None
    key: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str | None = None
    sequence: int | None = None
    generation: int | None = None
    epoch: int = 0
    replays: int = 0
    created_at: datetime | None = None
    is_tombstone: bool = False
    source: str | None = None


def received(
    headers: Headers | None,
    payload: bytes | None = None,
    *,
    topic: str = "",
    key: str | None = None,
    content_type: str | None = None,
) -> Received:
    """Read what a publisher of Postroom sent, in any of its formats, or a CloudEvent from elsewhere.

    `headers` are a mapping or pairs, of texts or bytes. `topic`, `key` and `content_type` are what the protocol says
    apart from them; what the headers say wins. Raises `InvalidMessage` if there is no id.
    """
    given = dict(_text_pair(name, value) for name, value in _pairs(headers))
    found = {name.lower(): value for name, value in given.items()}
    content_type = found.get(CONTENT_TYPE, content_type)
    attributes = {name[3:]: value for name, value in found.items() if name.startswith(PREFIXES)}
    if _is_structured(content_type) and payload:
        (attributes, payload), content_type = _open(payload), None
    facts = {**{_ATTRIBUTES[name]: value for name, value in attributes.items() if name in _ATTRIBUTES}, **found}
    return Received(
        id=_id(facts),
        topic=facts.get(TOPIC_HEADER, topic),
        payload=None if NOTHING_HEADER in found and not payload else payload,
        key=facts.get(KEY_HEADER, key),
        type=facts.get(TYPE_HEADER),
        headers={name: value for name, value in given.items() if not _has_field(name.lower())},
        content_type=attributes.get("datacontenttype", content_type),
        sequence=_number(facts.get(SEQUENCE_HEADER)),
        generation=_number(facts.get(GENERATION_HEADER)),
        epoch=_number(facts.get(EPOCH_HEADER)) or 0,
        replays=_number(facts.get(REPLAY_HEADER)) or 0,
        created_at=_moment(facts.get(CREATED_HEADER)),
        is_tombstone=TOMBSTONE_HEADER in facts,
        source=attributes.get(_SOURCE),
    )


def _pairs(headers: Headers | None) -> Iterable[tuple[Any, Any]]:
    if isinstance(headers, Mapping):
        return cast("Mapping[Any, Any]", headers).items()
    return headers or ()


def _text_pair(name: Any, value: Any) -> tuple[str, str]:
    return _text(name), _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def _has_field(name: str) -> bool:
    return name in _FIELDS or name.startswith(PREFIXES)


def _id(facts: Mapping[str, str]) -> str:
    if not facts.get(ID_HEADER):
        raise InvalidMessage(
            "the message has neither a header postroom-id nor the id of a CloudEvent, so it cannot be told from "
            "others; if it is not from Postroom, make a Received(id=…) of it yourself"
        )
    return facts[ID_HEADER]


def _number(text: str | None) -> int | None:
    """None for what is no number: other senders have sequences of another kind."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


# --- CloudEvents in one JSON document


def _is_structured(content_type: str | None) -> bool:
    return (content_type or "").partition(";")[0].strip().lower() == STRUCTURED


def _open(document: bytes) -> tuple[dict[str, str], bytes | None]:
    """The attributes and the payload, byte for byte as it is in the document."""
    try:
        members = dict(_members(document.decode()))
        attributes = {name: _spelled(json.loads(raw)) for name, raw in members.items() if not name.startswith("data")}
        if "datacontenttype" in members:
            attributes["datacontenttype"] = json.loads(members["datacontenttype"])
        return attributes, _data(members, attributes.get("datacontenttype"))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidMessage(f"the message says that it is a CloudEvent in JSON, and is not: {error}") from error


def _data(members: Mapping[str, str], content_type: str | None) -> bytes | None:
    if "data_base64" in members:
        return base64.b64decode(json.loads(members["data_base64"]), validate=True)
    if "data" not in members:
        return None
    value = None if content_type is None or is_json(content_type) else json.loads(members["data"])
    return value.encode() if isinstance(value, str) else members["data"].encode()


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _members(text: str) -> Iterable[tuple[str, str]]:
    """Names and the text of their values: read and written again, numbers would change."""
    decoder = json.JSONDecoder()
    if not isinstance(json.loads(text), dict):
        raise ValueError("it is no object")
    place = text.index("{") + 1
    while text[place := _past_space(text, place)] != "}":
        name, place = decoder.raw_decode(text, place)
        place = _past_space(text, _past_space(text, place) + 1)
        _, end = decoder.raw_decode(text, place)
        yield name, text[place:end]
        place = _past_space(text, end)
        place += text[place] == ","


def _past_space(text: str, place: int) -> int:
    while text[place] in " \t\n\r":
        place += 1
    return place
