"""What a handler sends in answer to a message, remembered beside it: if the message comes again, so do its answers."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast

from ..checks import class_name, refuse, short
from ..errors import ConfigurationError, InvalidMessage
from ..message import Message
from ..outbox import Outbox, listed

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


def checked_replies(messages: Message | Iterable[Message], outbox: Outbox) -> list[Message]:
    check_outbox(outbox)
    replies = list(listed(messages))
    for message in replies:
        _check(message)
    return replies


def check_outbox(outbox: object) -> None:
    if not isinstance(outbox, Outbox):
        raise ConfigurationError(f"{short(outbox)} is no Outbox that replies could be written to")
    if outbox.order == "strict":
        raise ConfigurationError(
            f"outbox {outbox.name!r} has order='strict', so nothing can be sent again: it would be given a new number, "
            "and be taken for a new message; use an outbox with order='key' for replies"
        )


def pack(messages: Sequence[Message]) -> str:
    return json.dumps([_packed(message) for message in messages], ensure_ascii=False, separators=(",", ":"))


def unpack(text: str) -> list[Message]:
    return [_unpacked(entry) for entry in json.loads(text or "[]")]


def _check(message: object) -> None:
    if not isinstance(message, Message):
        refuse("reply", message, f"is a {class_name(message)}", "give postroom.Message objects")
    if message.slot >= 0:
        refuse("reply", message.topic, "is in an outbox already", "a reply is written there for you: do not add it")
    if message.delay is not None or message.deliver_at is not None:
        refuse("reply", message.topic, "has a delay", "a reply goes at once: add it to the outbox instead")
    if message.idempotency_key is not None:
        refuse("reply", message.topic, "has an idempotency_key", "leave it out: the inbox knows duplicates")


def _packed(message: Message) -> dict[str, Any]:
    return {
        **{name: getattr(message, name) for name in FIELDS},
        "headers": dict(message.headers),
        "payload": b64encode(message.payload).decode(),
        "expires_at": None if message.expires_at is None else message.expires_at.isoformat(),
    }


def _unpacked(packed: dict[str, Any]) -> Message:
    expires_at = packed["expires_at"]
    return Message(
        **{name: packed[name] for name in FIELDS},
        headers=packed["headers"],
        payload=b64decode(packed["payload"]),
        expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
    )
