"""What a handler sends in answer to a message, remembered beside it: if the message comes again, so do its answers."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..checks import refuse, short
from ..errors import ConfigurationError, InvalidMessage
from ..message import TOMBSTONE, Message

if TYPE_CHECKING:
    from ..outbox import Outbox

FIELDS = ("topic", "key", "type", "id", "content_type", "replays")


def returned_replies(result: object, handler: str) -> list[Message]:
    """What a handler returned: nothing, a message, or several."""
    several: Sequence[object] = cast(Any, result) if isinstance(result, list | tuple) else [result]
    replies = [message for message in several if isinstance(message, Message)]
    if result is not None and len(replies) < len(several):
        raise InvalidMessage(
            f"{handler} returned {short(cast(object, result))}: with replies=… what it returns is sent, so return a "
            "postroom.Message, a list of them, or None"
        )
    return replies


def checked_replies(messages: Iterable[Message], outbox: Outbox) -> list[Message]:
    check_outbox(outbox)
    replies = list(messages)
    for message in replies:
        if message.delay is not None or message.deliver_at is not None:
            refuse("reply", message.topic, "has a delay", "a reply goes at once: add it to the outbox instead")
        if message.idempotency_key is not None:
            refuse("reply", message.topic, "has an idempotency_key", "leave it out: the inbox knows duplicates")
    return replies


def check_outbox(outbox: Outbox) -> None:
    if outbox.order == "strict":
        raise ConfigurationError(
            f"outbox {outbox.name!r} has order='strict', so nothing can be sent again: it would be given a new number, "
            "and be taken for a new message; use an outbox with order='key' for replies"
        )


def pack(given: Sequence[Message], written: Sequence[Message]) -> str:
    """`written` is what became of `given` in the outbox: serialised, and with all of its headers."""
    return json.dumps(
        [_packed(message, source.payload is TOMBSTONE) for source, message in zip(given, written, strict=True)],
        ensure_ascii=False,
        separators=(",", ":"),
    )


def unpack(text: str) -> list[Message]:
    return [_unpacked(entry) for entry in json.loads(text)]


def _packed(message: Message, is_tombstone: bool) -> dict[str, Any]:
    packed: dict[str, Any] = {name: getattr(message, name) for name in FIELDS}
    packed["headers"] = dict(message.headers)
    packed["payload"] = None if is_tombstone else b64encode(message.payload).decode()
    packed["expires_at"] = None if message.expires_at is None else message.expires_at.isoformat()
    return packed


def _unpacked(packed: dict[str, Any]) -> Message:
    payload, expires_at = packed["payload"], packed["expires_at"]
    return Message(
        **{name: packed[name] for name in FIELDS},
        headers=packed["headers"],
        payload=TOMBSTONE if payload is None else b64decode(payload),
        expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
    )
