"""Globs on topics: which destination a message goes to, and which value of an option applies to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import Generic, TypeVar, cast

from .errors import ConfigurationError

T = TypeVar("T")

EVERYTHING = "*"
REMEMBERED_TOPICS = 4096
"""Topics whose match is remembered. Bounded: an application may make up topics without end."""


@dataclass(frozen=True, slots=True, init=False)
class Globs:
    """Shell patterns such as "orders.*": case-sensitive, tried in their order, the first match wins."""

    patterns: tuple[str, ...]
    _find: Callable[[str], str | None] = field(repr=False, compare=False)

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        checked = tuple(_checked(pattern) for pattern in patterns)
        object.__setattr__(self, "patterns", checked)
        object.__setattr__(self, "_find", _finder(checked))

    def match(self, name: str) -> str | None:
        """The pattern that matches, or None."""
        return self._find(name)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def __reduce__(self) -> tuple[type[Globs], tuple[tuple[str, ...]]]:
        # What is remembered cannot be pickled, and need not be.
        return Globs, (self.patterns,)


class Routes(Generic[T]):
    """Where each topic goes: a mapping of globs to targets, the first match wins; one target alone takes everything."""

    __slots__ = ("_globs", "targets")

    def __init__(self, targets: Mapping[str, T] | T) -> None:
        self.targets: Mapping[str, T] = _mapping(targets)
        self._globs = Globs(self.targets)
        if not self.targets:
            raise ConfigurationError("there are no routes; give at least one, such as {'*': 'stdout:'}")

    def match(self, topic: str) -> str | None:
        """The pattern that decides for this topic; None if nothing does."""
        return self._globs.match(topic)

    def target_for(self, topic: str) -> T | None:
        pattern = self._globs.match(topic)
        return None if pattern is None else self.targets[pattern]

    def shadowed(self) -> list[str]:
        """Patterns that can never match, because "*" or a match of the very same text comes before them."""
        patterns = self._globs.patterns
        return [pattern for place, pattern in enumerate(patterns) if _is_shadowed(pattern, patterns[:place])]

    def __repr__(self) -> str:
        # Targets may be URLs with passwords in them.
        return f"Routes({', '.join(self.targets)})"


@dataclass(frozen=True, slots=True, init=False)
class PerTopic(Generic[T]):
    """A value that may differ by message: one for all, or a mapping of globs on message types and topics.

    The type is looked up first, then the topic, each in the mapping's order. "*" is what applies when neither is found,
    wherever it stands; without it `default` does.
    """

    default: T
    values: tuple[tuple[str, T], ...]
    _by_glob: Mapping[str, T] = field(repr=False, compare=False)
    _globs: Globs = field(repr=False, compare=False)

    def __init__(self, default: T, values: Mapping[str, T] | None = None) -> None:
        given = dict(values or {})
        object.__setattr__(self, "default", given.pop(EVERYTHING, default))
        object.__setattr__(self, "values", tuple(given.items()))
        object.__setattr__(self, "_by_glob", given)
        object.__setattr__(self, "_globs", Globs(given))

    def value_for(self, topic: str, type: str | None = None) -> T:
        if not self._by_glob:
            return self.default
        pattern = None if type is None else self._globs.match(type)
        pattern = pattern or self._globs.match(topic)
        return self.default if pattern is None else self._by_glob[pattern]

    def possible(self) -> list[T]:
        """Every value that may apply to some message."""
        return [*(value for _, value in self.values), self.default]


def topic_for(aggregate: str, event_type: str, template: str = "{aggregate}.{event}") -> str:
    """The topic of an event, derived from the types of its aggregate and of itself, both in kebab case.

    A template may use `{aggregate}` and `{event}`, `{action}` (the event without the aggregate's name in front), and
    the names as they were given, `{aggregate_type}` and `{event_type}`.

    >>> topic_for("Order", "OrderPlaced"), topic_for("Order", "OrderPlaced", "{aggregate}.{action}")
    ('order.order-placed', 'order.placed')
    """
    names = {"aggregate": kebab(aggregate), "event": kebab(event_type)}
    names["action"] = names["event"].removeprefix(f"{names['aggregate']}-")
    try:
        return template.format_map({**names, "aggregate_type": aggregate, "event_type": event_type})
    except (LookupError, ValueError, AttributeError) as error:
        known = "{aggregate}, {event}, {action}, {aggregate_type} or {event_type}"
        raise ConfigurationError(f"topic template {template!r} cannot be filled in ({error}); use {known}") from error


def kebab(name: str) -> str:
    """`OrderPlaced`, `order_placed` and `Order placed` are all `order-placed`; dots stay: `shop.OrderPlaced`.

    >>> kebab("HTTPRequestSent"), kebab("shop.OrderV2Placed")
    ('http-request-sent', 'shop.order-v2-placed')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()
    joined = re.sub(r"[^\w.]+|_+", "-", words).strip("-")
    if not joined.strip("-."):
        raise ConfigurationError(f"{name!r} is no name for an aggregate or an event; it needs a letter or a digit")
    return joined


def _checked(pattern: object) -> str:
    if isinstance(pattern, str) and pattern:
        return pattern
    raise ConfigurationError(f"{pattern!r} is no glob; write text such as 'orders' or 'orders.*'")


def _finder(patterns: tuple[str, ...]) -> Callable[[str], str | None]:
    compiled = [(re.compile(translate(pattern)), pattern) for pattern in patterns]

    def find(name: str) -> str | None:
        return next((pattern for expression, pattern in compiled if expression.match(name)), None)

    return lru_cache(maxsize=REMEMBERED_TOPICS)(find)


def _mapping(targets: Mapping[str, T] | T) -> Mapping[str, T]:
    if isinstance(targets, Mapping):
        return dict(cast(Mapping[str, T], targets))
    return {EVERYTHING: targets}


def _is_shadowed(pattern: str, earlier: tuple[str, ...]) -> bool:
    literal = not set("*?[") & set(pattern)
    return EVERYTHING in earlier or (literal and pattern in Globs(earlier))
