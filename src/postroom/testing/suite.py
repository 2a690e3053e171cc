"""What all suites for adapters have in common."""

from __future__ import annotations

from abc import ABC
from typing import Any


class Suite(ABC):  # noqa: B024 - those that are made of it have them
    """pytest leaves abstract classes out without a word, so that a forgotten method would look like a success."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__name__.startswith("Test") and (missing := abstract_methods(cls)):
            raise TypeError(f"{cls.__name__} must define {', '.join(missing)}: else none of its tests would be run")


def abstract_methods(suite: type) -> list[str]:
    """`__abstractmethods__` is not there yet while a class is made."""
    return [name for name in dir(suite) if getattr(getattr(suite, name, None), "__isabstractmethod__", False)]
