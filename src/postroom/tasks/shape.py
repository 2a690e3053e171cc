"""The type of a task's payload: read from the function's annotation, checked before the function runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError, MissingExtra

Read = Callable[[bytes], Any]

_ANYTHING = (Any, object)
_PLAIN: dict[Any, tuple[type, ...]] = {
    None: (type(None),),
    type(None): (type(None),),
    dict: (dict,),
    list: (list,),
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (float, int),
}


class PayloadInvalid(ValueError):
    """A payload is not what the task's function is annotated with."""


def reader_for(annotation: Any, task: str) -> Read:
    """A function that makes the payload from its bytes, or raises `PayloadInvalid`.

    What JSON has is read as it is. Dataclasses, `TypedDict`s, pydantic models and anything else are read by pydantic.
    """
    if annotation is bytes:
        return bytes
    if annotation in _ANYTHING:
        return _parse
    kinds = _PLAIN.get(annotation) if _is_hashable(annotation) else None
    return _plain(kinds, annotation) if kinds is not None else _typed(annotation, task)


def _parse(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError as error:
        raise PayloadInvalid(f"the payload is no JSON: {error}") from error


def _plain(kinds: tuple[type, ...], annotation: Any) -> Read:
    def read(payload: bytes) -> Any:
        value = _parse(payload)
        if isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds):
            return value
        raise PayloadInvalid(f"the payload is a {type(value).__name__}, and should be {_name(annotation)}")

    return read


def _typed(annotation: Any, task: str) -> Read:
    try:
        from pydantic import TypeAdapter, ValidationError
        from pydantic.errors import PydanticUserError
    except ImportError:
        raise MissingExtra(
            f"the payload of task {task!r} is a {_name(annotation)}, which pydantic reads: pip install "
            "'postroom[pydantic]', or annotate it with dict"
        ) from None
    try:
        adapter: Any = TypeAdapter(annotation)
    except (PydanticUserError, TypeError, NameError) as error:
        raise ConfigurationError(
            f"the payload of task {task!r} is annotated with {_name(annotation)}, which cannot be read from JSON: "
            f"{str(error).splitlines()[0]}"
        ) from error

    def read(payload: bytes) -> Any:
        try:
            return adapter.validate_json(payload)
        except ValidationError as error:
            raise PayloadInvalid(f"the payload is no {_name(annotation)}: {_summary(error)}") from error

    return read


def _summary(error: Any) -> str:
    """What is wrong, without what was given: that may be a secret."""
    found = [f"{'.'.join(map(str, each['loc'])) or 'payload'}: {each['msg']}" for each in error.errors()[:5]]
    more = error.error_count() - len(found)
    return "; ".join(found) + (f"; and {more} more" if more > 0 else "")


def _is_hashable(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:
        return False
    return True


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
