"""Tasks: functions of the application that run after commit, by a relay, with a payload from the outbox."""

from .context import TaskContext
from .decisions import Block, Decision, Ignore, Retry
from .registry import Task, Tasks

__all__ = ["Block", "Decision", "Ignore", "Retry", "Task", "TaskContext", "Tasks"]
