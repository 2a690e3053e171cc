"""Adapters by name, from entry points; nothing is imported before it is asked for."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from .errors import ConfigurationError, MissingExtra

STORES = "postroom.stores"
PUBLISHERS = "postroom.publishers"

EXTRAS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "https": "http",
    "mqtts": "mqtt",
    "rediss": "redis",
    "sns": "aws",
    "sqs": "aws",
    "tls": "nats",
    "valkey": "redis",
    "valkeys": "redis",
}
"""Where the name of the extra is not that of the scheme."""


def names(group: str) -> list[str]:
    return sorted({entry.name for entry in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """The adapter registered under that name, or an error that lists what there is."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"{name!r} needs the library {error.name!r}, which is not installed: "
                f"pip install 'postroom[{EXTRAS.get(name, name)}]'"
            ) from error
    kind = "publisher" if group == PUBLISHERS else "store"
    known = names(group)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigurationError(f"no {kind} is registered for {name!r}: {hint}known are {', '.join(known) or 'none'}")


def scheme_of(url: str) -> str:
    """`sqlite+aiosqlite:///x` → `sqlite`; an error if it has no scheme."""
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme:
        raise ConfigurationError(f"{url!r} is not a URL: it needs a scheme, as in 'sqlite:///app.db' or 'stdout:'")
    return scheme.partition("+")[0].lower()
