"""Limits on what applications say: each refusal names the field, the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NoReturn, cast
from uuid import UUID

from .duration import seconds
from .errors import ConfigurationError, InvalidMessage
from .message import LONGEST_NAME

RESERVED_PREFIX = "postroom-"
"""Of header names: these are ours."""
LONGEST_DELAY = 100 * 365 * 86_400.0


def name_in(field: str, value: object, remedy: str = "give a text") -> str:
    """A text that fits into its column, whatever the database."""
    if not isinstance(value, str):
        how = f"{field}.decode()" if isinstance(value, (bytes, bytearray)) else f"str({field})"
        refuse(field, value, f"is a {class_name(value)}, not a text", f"use {how}")
    if not value:
        refuse(field, value, "is empty", remedy)
    if len(value) > LONGEST_NAME:
        refuse(field, value, f"has {len(value)} characters", f"shorten it to at most {LONGEST_NAME}")
    return text_in(field, value)


def optional_name(field: str, value: object, remedy: str = "use None for none") -> str | None:
    return None if value is None else name_in(field, value, remedy)


def text_in(field: str, value: str) -> str:
    if "\x00" in value:
        refuse(field, value, "contains a NUL character, which databases cannot store", "leave it out")
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(field, value, "contains half a character (a surrogate)", "decode it properly first")
    return str.__str__(value)  # an enum member that is a string becomes its value


def headers_in(field: str, headers: object) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        refuse(field, headers, f"is a {class_name(headers)}", "give a mapping from names to texts")
    return dict(_header(name, value) for name, value in cast(Mapping[object, object], headers).items())


def _header(name: object, value: object) -> tuple[str, str]:
    checked = name_in("header name", name)
    if checked.lower().startswith(RESERVED_PREFIX):
        refuse("header name", name, f"begins with {RESERVED_PREFIX!r}, which is Postroom's own", "choose another")
    if not isinstance(value, str):
        refuse(f"header {short(checked)}", value, f"is a {class_name(value)}, not a text", "use str(…)")
    return checked, text_in(f"header {short(checked)}", value)


def id_in(value: object) -> str:
    try:
        return str(value if isinstance(value, UUID) else UUID(cast(str, value)))
    except (ValueError, AttributeError, TypeError):
        refuse("id", value, "is no UUID", "give a uuid.UUID or its text, or leave it out")


def moment_in(field: str, value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        refuse(field, value, f"is a {class_name(value)}, not a datetime", "give a datetime with a time zone")
    if value.utcoffset() is None:
        refuse(field, value, "has no time zone", f"write {field}=datetime.now(UTC) + …, or add tzinfo")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        refuse(field, value, "is out of range in UTC", "choose a nearer time")


def delay_in(value: object) -> float:
    """Zero and less are fine: due at once."""
    try:
        length = _length(value)
    except ConfigurationError as error:
        raise InvalidMessage(str(error)) from error
    if not math.isfinite(length) or abs(length) > LONGEST_DELAY:
        refuse("delay", value, "is out of range", "give at most 100 years")
    return length


def _length(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return seconds(value, name="delay")


def refuse(field: str, value: object, problem: str, remedy: str) -> NoReturn:
    raise InvalidMessage(f"{field} {short(value)} {problem}; {remedy}")


def short(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def class_name(value: object) -> str:
    return type(value).__name__
