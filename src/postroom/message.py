"""What the application says, its name and its slot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from hashlib import md5
from typing import Any

SLOTS = 64
"""Keys are hashed to this many slots. It is a constant: a writer and a relay that disagreed would strand messages."""

LONGEST_NAME = 255
"""Characters in a topic, a key, a type or an idempotency key."""

TASKS_TOPIC = "postroom.tasks"
"""Of all tasks, so that a key orders across their kinds. No glob matches it."""

ID_HEADER = "postroom-id"
TYPE_HEADER = "postroom-type"
KEY_HEADER = "postroom-key"
CREATED_HEADER = "postroom-created"
SEQUENCE_HEADER = "postroom-sequence"
GENERATION_HEADER = "postroom-generation"
TOPIC_HEADER = "postroom-topic"
EPOCH_HEADER = "postroom-epoch"
IDEMPOTENCY_HEADER = "postroom-idempotency-key"
REVIVED_HEADER = "postroom-revived"
REPLAY_HEADER = "postroom-replay"
TOMBSTONE_HEADER = "postroom-tombstone"
COPY_HEADER = "postroom-copy-of"
NOTHING_HEADER = "postroom-nothing"


class Nothing(Enum):
    """A payload that is none: with Kafka a tombstone, which lets compaction drop what the key had."""

    TOMBSTONE = "tombstone"


TOMBSTONE = Nothing.TOMBSTONE


def new_id(nanoseconds: int | None = None, random: Callable[[int], bytes] = os.urandom) -> str:
    """A UUIDv7: milliseconds, then the fraction of the millisecond, then randomness; it sorts by time."""
    milliseconds, rest = divmod(time.time_ns() if nanoseconds is None else nanoseconds, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    tail = int.from_bytes(random(8), "big") & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    digits = f"{milliseconds:012x}7{fraction:03x}{tail:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def slot_of(key: str | None, id: str) -> int:
    """The slot of a key: the first byte of its MD5, modulo 64. A message without a key is spread by its id.

    PostgreSQL: `get_byte(decode(md5(key), 'hex'), 0) % 64`. MySQL: `conv(left(md5(key), 2), 16, 10) % 64`.
    """
    if key is None:
        return int(id[-2:], 16) % SLOTS
    return md5(key.encode(), usedforsecurity=False).digest()[0] % SLOTS


@dataclass(slots=True, kw_only=True)
class Message:
    """What the application says.

    The application fills in the first group. `Outbox.add` returns the message with its `id`; `sequence` (strict order)
    and `duplicate` (idempotency key) are known once the row is written: at once on a connection, at a session's commit.
    A publisher gets the message with `payload` as bytes and the last group filled in.
    """

    topic: str
    payload: Any = None
    key: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    id: str = field(default_factory=new_id)
    content_type: str | None = None
    idempotency_key: str | None = None
    deliver_at: datetime | None = None
    delay: timedelta | float | str | None = None
    expires_at: datetime | None = None

    sequence: int | None = None
    generation: int | None = None
    duplicate: bool | None = None

    position: int = 0
    slot: int = -1
    attempt: int = 1
    epoch: int = 0
    replays: int = 0
    created_at: datetime | None = None

    @property
    def dedupe_id(self) -> str:
        """What to give a broker that drops duplicates by id: a replay must not be swallowed. To a relay it is another
        message, too."""
        return f"{self.id}+{self.replays}" if self.replays else self.id

    def wire_headers(self) -> dict[str, str]:
        """The application's headers and Postroom's own, as a publisher sends them."""
        headers = {**self.headers, ID_HEADER: self.id, EPOCH_HEADER: str(self.epoch)}
        if self.key is not None:
            headers[KEY_HEADER] = self.key
        if self.type is not None:
            headers[TYPE_HEADER] = self.type
        if self.created_at is not None:
            headers[CREATED_HEADER] = self.created_at.isoformat()
        if self.sequence is not None:
            headers[SEQUENCE_HEADER] = str(self.sequence)
            headers[GENERATION_HEADER] = str(self.generation)
            headers[TOPIC_HEADER] = self.topic
        if self.replays:
            headers[REPLAY_HEADER] = str(self.replays)
        return headers
