"""Limits on what applications say: each refusal names the field, the value and the remedy."""

from __future__ import annotations

from typing import NoReturn

from .errors import InvalidMessage
from .message import LONGEST_NAME


def name_in(field: str, value: object, remedy: str = "give a text") -> str:
    """A text that fits into its column, whatever the database."""
    if not isinstance(value, str):
        refuse(field, value, f"is a {class_name(value)}, not a text", f"use str({field})")
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


def refuse(field: str, value: object, problem: str, remedy: str) -> NoReturn:
    raise InvalidMessage(f"{field} {short(value)} {problem}; {remedy}")


def short(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def class_name(value: object) -> str:
    return type(value).__name__
