"""The consumer's memory: what was handled is not handled again."""

from .inbox import Inbox

__all__ = ["Inbox"]
