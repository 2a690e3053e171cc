"""From what the user gave (URLs, objects, callables) to stores and publishers."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from sqlalchemy import URL

from .. import registry
from ..errors import ConfigurationError
from ..message import TASKS_TOPIC
from ..outbox import Outbox
from ..ports import Functions, Publisher, Store
from ..redact import redact
from ..routing import Routes

LONGEST = 200
"""Characters of a destination's name: it is a column, and something may have to be added."""


def new_relay_id() -> str:
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Target:
    """A destination: its name, and how to get its publisher when the relay starts."""

    name: str
    make: Callable[[], Publisher]
    ours: bool
    """Whether the relay closes what it made."""
    max_size: int | None = None
    """Bytes of a payload that it takes at most, if that is known."""


def store_for(store: Any, outbox: Outbox) -> Store:
    if isinstance(store, URL):
        store = store.render_as_string(hide_password=False)
    if not isinstance(store, str):
        if not hasattr(store, "fetch"):
            raise ConfigurationError(
                f"{type(store).__name__} is no store: give the URL of the database, such as 'sqlite:///app.db' or "
                "that of an engine (`engine.url`), for a relay makes connections of its own"
            )
        return cast(Store, store)
    kind = registry.load(registry.STORES, registry.scheme_of(store))
    return kind(store, name=outbox.name, prefix=outbox.tables.prefix, schema=outbox.schema)


def targets_for(
    publishers: Any, unavailable: tuple[type[BaseException], ...], concurrency: int, tasks: Functions | None = None
) -> Routes[Target]:
    """Each distinct URL or object becomes one destination, however many globs lead to it."""
    given = cast("Mapping[str, Any]", publishers) if isinstance(publishers, Mapping) else {"*": publishers}
    routes: dict[str, Target] = {}
    if TASKS_TOPIC in given:
        raise ConfigurationError(f"tasks cannot be routed: leave out {TASKS_TOPIC!r}, and give the relay tasks=…")
    if tasks is not None:
        routes[tasks.topic] = Target("tasks", lambda: tasks.publisher(concurrency=concurrency), True)
        given = {} if publishers is None else given
    if not (given or routes) or (publishers is None and tasks is None):
        raise ConfigurationError(
            "a relay needs a publisher, or routes such as {'orders.*': 'stdout:'}, or tasks to run"
        )
    made: dict[object, Target] = {**routes}
    for glob, publisher in given.items():
        identity = publisher if isinstance(publisher, str) else id(publisher)
        if identity not in made:
            made[identity] = _target(publisher, unavailable, concurrency, {target.name for target in made.values()})
        routes[glob] = made[identity]
    return Routes(routes)


def payload_limits(routes: Routes[Target]) -> dict[str, int | None]:
    """By glob: what its destination takes at most, if that is known."""
    return {glob: target.max_size for glob, target in routes.targets.items()}


def _target(publisher: Any, unavailable: tuple[type[BaseException], ...], concurrency: int, taken: set[str]) -> Target:
    if isinstance(publisher, str):
        url = publisher
        kind = registry.load(registry.PUBLISHERS, registry.scheme_of(url))
        made = kind(url)  # a bad URL is an error now, not when the relay runs; constructors do no I/O
        return Target(_unique(_name_at(url, made), taken), lambda: kind(url), True, made.features.max_size)
    if hasattr(publisher, "publish") and hasattr(publisher, "features"):
        return Target(_unique(_name_of(publisher), taken), lambda: publisher, False, publisher.features.max_size)
    if isinstance(publisher, (list, tuple, set)):
        raise ConfigurationError(
            "a topic goes to one destination; to send its messages to several, let the outbox write a copy for each, "
            "as in Outbox(fan_out={'orders.*': ['audit.{topic}']}), and route 'audit.*' to the other"
        )
    if callable(publisher):
        kind = registry.load(registry.PUBLISHERS, "callable")
        return Target(
            _unique(_name_of(publisher), taken),
            lambda: kind(publisher, concurrency=concurrency, unavailable=unavailable),
            True,
        )
    raise ConfigurationError(
        f"{publisher!r} is no publisher: give a URL such as 'stdout:', a callable that takes a message, or an object "
        "with `publish` and `features`"
    )


def _name_at(url: str, publisher: Any) -> str:
    """The URL, unless the publisher was given another name, as for a URL that is a secret itself."""
    name, own = redact(url), getattr(publisher, "name", None)
    places = (name, name.partition("?")[0], name.partition("#")[0])
    return own if isinstance(own, str) and own and own not in places else name


def _name_of(publisher: Any) -> str:
    given = getattr(publisher, "name", None)
    if isinstance(given, str) and given:
        return redact(given)
    if hasattr(publisher, "func"):  # functools.partial
        return _name_of(publisher.func)
    source: Any = publisher if hasattr(publisher, "__qualname__") else publisher.__class__
    return f"{source.__module__}.{source.__qualname__}"[:200]


def _unique(name: str, taken: set[str]) -> str:
    if len(name) > LONGEST:
        digest = sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: LONGEST - 1 - len(digest)]}…{digest}"
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}#{number}"
    return unique
