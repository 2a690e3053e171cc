"""What a task knows about the run that it is in."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..message import IDEMPOTENCY_HEADER, Message

logger = logging.getLogger("postroom.tasks")


class TaskLogger(logging.LoggerAdapter[logging.Logger]):
    """Names the task and its message in front of what it says, and in the record's fields."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known: Mapping[str, object] = self.extra or {}
        kwargs["extra"] = {**known, **kwargs.get("extra", {})}
        return f"[{known['task']} {known['message_id']}] {msg}", kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """A run of a task.

    `message_id` is the same for each run of what was scheduled once: a good key for whatever the task does elsewhere.
    `attempt` counts the runs, from 1, those included that ended with the process. `deadline` is when the time-out ends.
    """

    task: str
    message_id: str
    idempotency_key: str | None
    key: str | None
    attempt: int
    deadline: datetime | None
    scheduled_at: datetime | None
    headers: Mapping[str, str]
    logger: TaskLogger


def context_of(message: Message, crashes: int, deadline: datetime | None) -> TaskContext:
    task, attempt = message.type or "", message.attempt + crashes
    about = {"task": task, "message_id": message.id, "key": message.key, "attempt": attempt}
    headers = dict(message.headers)
    return TaskContext(
        task=task,
        message_id=message.id,
        idempotency_key=headers.pop(IDEMPOTENCY_HEADER, None),
        key=message.key,
        attempt=attempt,
        deadline=deadline,
        scheduled_at=message.created_at,
        headers=headers,
        logger=TaskLogger(logger, about),
    )
