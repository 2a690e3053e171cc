"""What tests of publishers are written with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from postroom.message import Message
from postroom.ports import Publisher
from postroom.testing.batch import RecordingBatch, hand_over

JSON = "application/json"
PATIENCE = 10.0


def message(key: str | None = "a", payload: Any = b"{}", content_type: str | None = JSON, **fields: Any) -> Message:
    return Message(topic="orders", key=key, payload=payload, content_type=content_type, **fields)


def messages(keys: Iterable[str | None]) -> list[Message]:
    return [message(key) for key in keys]


async def publish(publisher: Publisher, batch: Iterable[Message], timeout: float = 5.0) -> RecordingBatch:
    recording = await hand_over(publisher, RecordingBatch(batch, timeout))
    assert not recording.violations
    return recording


def kinds(batch: RecordingBatch) -> list[str]:
    """What each message was answered with, in the order of the batch."""
    return [type(batch.error_of(message)).__name__ for message in batch.messages]


def run(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True, **options)
