"""Names at a destination, made from what a message says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from string import Formatter

from ..errors import ConfigurationError, MessageRejected
from ..message import Message

FIELDS = ("topic", "key", "type")


def template(name: str, text: str) -> Callable[[Message], str]:
    """What `orders.{topic}` or `{key}` is for a message. A message without a key or a type that is asked for has no
    name, and is refused for good."""
    fields = _fields(name, text)
    if text == "{topic}":
        return lambda message: message.topic
    if not fields:
        constant = text.format()
        return lambda _: constant

    def fill(message: Message) -> str:
        values = {field: getattr(message, field) for field in fields}
        if lacking := [field for field, value in values.items() if value is None]:
            raise MessageRejected(f"it has no {lacking[0]}, and {name}={text!r} needs one", permanent=True)
        return text.format(**values)

    return fill


def names_for(fill: Callable[[Message], str], topics: Iterable[str]) -> set[str]:
    """What it is for these topics, as far as the topic alone decides that."""
    names: set[str] = set()
    for topic in topics:
        with suppress(MessageRejected):
            names.add(fill(Message(topic=topic)))
    return names


def _fields(name: str, text: str) -> list[str]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigurationError(f"{name}={text!r} is no template: {error}") from None
    fields = [field for _, field, _, _ in parts if field is not None]
    if not text or any(
        field not in FIELDS or spec or conversion for _, field, spec, conversion in parts if field is not None
    ):
        raise ConfigurationError(
            f"{name}={text!r} may name {{topic}}, {{key}} and {{type}}, and nothing else in braces"
        )
    return fields
