"""A process whose clock is wrong. Set before anything else is imported, so that everybody gets the wrong time."""

from __future__ import annotations

import datetime
import time
from typing import Any

_RIGHT = datetime.datetime


class _LikeDatetime(type):
    """What drivers return is made elsewhere, and is a datetime all the same."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _RIGHT)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _RIGHT)


def set_clock_wrong(by: float) -> None:
    right_time, right_time_ns = time.time, time.time_ns

    class WrongDatetime(_RIGHT, metaclass=_LikeDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _RIGHT.now(tz) + datetime.timedelta(seconds=by)

        @classmethod
        def utcnow(cls) -> Any:
            return _RIGHT.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=by)

    time.time = lambda: right_time() + by
    time.time_ns = lambda: right_time_ns() + int(by * 1e9)
    datetime.datetime = WrongDatetime
