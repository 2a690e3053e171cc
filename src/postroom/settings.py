"""Every setting with its default, and where settings come from: a file, the environment, flags."""

# ruff: noqa: RUF009 - `_setting` is `dataclasses.field`, and all defaults are immutable

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from . import retry as retries
from .duration import seconds, spell
from .errors import ConfigurationError
from .retry import RetryPolicy, Steps
from .routing import PerTopic, Routes
from .serialize import Serializer, resolve

Claim = Literal["slots", "leader", "rows"]
OnDead = Literal["block", "continue"]

FILE = "postroom.toml"
PROJECT_FILE = "pyproject.toml"
PREFIX = "POSTROOM_"
FILE_VARIABLE = "POSTROOM_CONFIG"

LEASE_MARGIN = 0.1
"""The share of a lease's time that is not used: for clocks that run at different speeds, and for slow answers."""

Reader = Callable[[str, object], Any]
"""Turns what a user wrote into a setting's value, or raises a `ConfigurationError` that begins with the given name."""


def _duration(at_least: float = 0.0, at_most: float | None = None) -> Reader:
    def read(name: str, value: object) -> float:
        length = seconds(value, name=name)
        if length < at_least or (at_most is not None and length > at_most):
            limit = f"from {spell(at_least)} to {spell(at_most)}" if at_most else f"at least {spell(at_least)}"
            raise ConfigurationError(f"{name}: {value!r} must be {limit}")
        return length

    return read


def _whole(at_least: int) -> Reader:
    def read(name: str, value: object) -> int:
        number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
        if isinstance(number, int) and not isinstance(number, bool) and number >= at_least:
            return number
        raise ConfigurationError(f"{name}: {value!r} must be a whole number, at least {at_least}")

    return read


def _rate(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if 0 < number < float("inf"):
        return number
    raise ConfigurationError(f"{name}: {value!r} must be a number of messages per second, such as 500")


def _flag(name: str, value: object) -> bool:
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    word = str(value).strip().lower()
    if isinstance(value, (bool, int, str)) and word in known:
        return known[word]
    raise ConfigurationError(f"{name}: {value!r} must be true or false")


def _one_of(*choices: str) -> Reader:
    def read(name: str, value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ConfigurationError(f"{name}: {value!r} must be {' or '.join(map(repr, choices))}")

    return read


def _optional(read: Reader) -> Reader:
    """Since None means unset, the text "none" is how a later source takes back what an earlier one set."""
    return lambda name, value: None if value == "none" else read(name, value)


@contextmanager
def _naming(name: str) -> Generator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _per_topic(read: Reader, default: object) -> Reader:
    def read_any(name: str, value: object) -> PerTopic[Any]:
        if not isinstance(value, Mapping):
            return PerTopic(read(name, value))
        entries = cast(Mapping[str, object], value).items()
        values = {glob: read(f"{name}[{glob!r}]", entry) for glob, entry in entries}
        with _naming(name):
            return PerTopic(default, values)

    return read_any


def _latest_only(name: str, value: object) -> PerTopic[bool]:
    if isinstance(value, (list, tuple, set, frozenset)):
        value = {_text(name, glob): True for glob in cast(Iterable[object], value)}
    return _per_topic(_flag, False)(name, value)


def _text(name: str, value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ConfigurationError(f"{name}: a {type(value).__name__} is no text, or it is empty")


def _routes(name: str, value: object) -> Mapping[str, str]:
    if isinstance(value, Mapping) and value:
        entries = cast(Mapping[str, object], value).items()
        targets = {glob: _text(f"{name}[{glob!r}]", url) for glob, url in entries}
        with _naming(name):
            return Routes(targets).targets
    raise ConfigurationError(f'{name}: write a table of globs and URLs, such as {{"orders.*" = "stdout:"}}')


def _serializer(name: str, value: object) -> Serializer:
    with _naming(name):
        return resolve(value)


def _setting(default: Any, read: Reader, about: str) -> Any:
    return field(default=default, metadata={"read": read, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a relay works. Make it with `Settings.of`, which takes values as users write them and checks them."""

    claim: Claim = _setting(
        "slots", _one_of("slots", "leader", "rows"), "How relays share the work; the same for all relays of an outbox."
    )
    batch_size: int = _setting(500, _whole(1), "Messages fetched at a time.")
    workers: int | None = _setting(None, _optional(_whole(1)), "Pumps per relay; None = as many as suit the store.")
    concurrency: int = _setting(32, _whole(1), "Tasks, and calls of a Python function, that run at the same time.")
    poll_interval: float = _setting(0.1, _duration(0.01, 600), "Pause between looks at the outbox, without a doorbell.")
    idle_interval: float = _setting(1.0, _duration(0.01, 3600), "The same when a doorbell works.")
    lease_ttl: float = _setting(15.0, _duration(0.1, 3600), "How long the slots of a crashed relay wait for another.")
    publish_timeout: float = _setting(7.5, _duration(0.01), "Longest wait for a broker's answer; half of lease_ttl.")
    stop_timeout: float = _setting(10.0, _duration(), "How long stopping waits for what is in flight.")
    retry: RetryPolicy = _setting(
        Steps(), lambda name, value: retries.parse(value, name=name), "When a refused message is tried again."
    )
    on_dead: PerTopic[OnDead] = _setting(
        PerTopic("block"),
        _per_topic(_one_of("block", "continue"), "block"),
        "What a dead message does to later ones of its key; by type or topic. Without a key it never blocks.",
    )
    revive_after: PerTopic[float | None] = _setting(
        PerTopic(None),
        _per_topic(_optional(_duration()), None),
        "Dead messages try again by themselves after this time; by type or topic. None = never.",
    )
    latest_only: PerTopic[bool] = _setting(
        PerTopic(False), _latest_only, "Of a key's undelivered messages only the newest is sent; by type or topic."
    )
    retention: float | None = _setting(
        None, _optional(_duration()), "How long delivered messages are archived; None = deleted on delivery."
    )
    dedupe_window: float = _setting(604_800.0, _duration(), "How long an idempotency key is remembered.")
    clean_interval: float = _setting(3_600.0, _duration(0.01), "Time between two rounds of cleaning.")
    clean_batch: int = _setting(10_000, _whole(1), "Rows that cleaning deletes at a time.")
    create_tables: bool = _setting(True, _flag, "Create missing tables on first use.")
    max_rate: float | None = _setting(None, _optional(_rate), "Messages per second to a destination; None = no limit.")
    enabled: bool = _setting(True, _flag, "Off = a relay that starts and delivers nothing.")
    breaker_initial: float = _setting(0.5, _duration(0.001), "First pause before an unavailable destination is probed.")
    breaker_cap: float = _setting(60.0, _duration(0.001), "Longest such pause.")
    trip_after: int = _setting(5, _whole(1), "Failures in a row, over different keys, that mean an outage after all.")

    @classmethod
    def of(cls, **overrides: object) -> Settings:
        """Settings from values as users write them: durations in any form, None = unset. Errors name the setting."""
        return _settings({name: (name, value) for name, value in overrides.items()})

    @property
    def renew_interval(self) -> float:
        """Leases are renewed this often, so that two renewals in a row may fail before one is lost."""
        return self.lease_ttl / 3

    @property
    def lease_margin(self) -> float:
        """This long before a lease ends, nothing is published under it any more."""
        return self.lease_ttl * LEASE_MARGIN

    def blocks(self, topic: str, type: str | None, key: str | None) -> bool:
        """Whether a message of this kind, once dead, holds up those behind it."""
        return key is not None and self.on_dead.value_for(topic, type) == "block"

    def cautions(self) -> list[str]:
        """What works, but hardly as meant; for logs and for `doctor`."""
        return [caution for caution, applies in _cautions(self) if applies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the command line needs to know: where the outbox is, where messages go, and the relay's settings."""

    name: str = _setting("default", _text, "The outbox's name.")
    prefix: str | None = _setting(None, _text, "What the names of the tables begin with.")
    schema: str | None = _setting(None, _text, "The database schema of the tables.")
    store: str | None = _setting(None, _text, "The database's URL.")
    publisher: str | None = _setting(None, _text, "The URL that takes what no route matches.")
    routes: Mapping[str, str] = field(
        default_factory=dict[str, str], metadata={"read": _routes, "about": "Globs on topics, and the URLs they go to."}
    )
    serializer: Serializer | None = _setting(None, _serializer, "'json' or the dotted name of a serializer.")
    settings: Settings = Settings()
    file: Path | None = None
    ignored: tuple[str, ...] = ()

    def destinations(self) -> Routes[str] | None:
        """Where messages go: the routes, then `publisher` for the rest; None if nothing was configured."""
        targets = dict(self.routes)
        if self.publisher is not None:
            targets["*"] = self.publisher
        return Routes(targets) if targets else None

    def cautions(self) -> list[str]:
        shadowed = [f"route {pattern!r} never matches: one above it does" for pattern in self._shadowed()]
        return [*self.ignored, *shadowed, *self.settings.cautions()]

    def _shadowed(self) -> list[str]:
        routes = self.destinations()
        return routes.shadowed() if routes else []


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    directory: str | os.PathLike[str] = ".",
) -> Configuration:
    """The configuration from a file, then `POSTROOM_*` variables, then flags; the later wins, None means unset.

    The file is `path`, or what POSTROOM_CONFIG names, or `postroom.toml` in `directory`, or `[tool.postroom]` in its
    `pyproject.toml`. A source that sets `publisher` or `routes` replaces both of the sources before it.
    Unknown names are errors; only unknown variables are not, since others (Kubernetes, for one) set some of that name.
    """
    environ = os.environ if environ is None else environ
    file = _find(path or environ.get(FILE_VARIABLE) or None, Path(directory))
    variables, ignored = _from_environment(environ)
    sources = [_from_file(file), variables, _from_flags(flags or {})]
    return _configuration(_merged(sources), file, ignored)


_Given = dict[str, tuple[str, object]]
"""Setting → what an error calls it (with its source), and what was written."""


def _readers(kind: type[Any]) -> dict[str, Reader]:
    return {item.name: item.metadata["read"] for item in fields(kind) if "read" in item.metadata}


_SETTINGS = _readers(Settings)
_NAMES = {**_readers(Configuration), **_SETTINGS}


def _settings(given: _Given) -> Settings:
    _refuse_unknown(given, _SETTINGS)
    values = {name: _SETTINGS[name](label, value) for name, (label, value) in given.items() if value is not None}
    lease_ttl = values.get("lease_ttl", Settings().lease_ttl)
    values.setdefault("publish_timeout", lease_ttl / 2)
    values.setdefault("idle_interval", max(Settings().idle_interval, values.get("poll_interval", 0)))
    values.setdefault("breaker_cap", max(Settings().breaker_cap, values.get("breaker_initial", 0)))
    settings = Settings(**values)
    _refuse_contradictions(settings)
    return settings


def _refuse_unknown(given: _Given, known: Iterable[str]) -> None:
    for name, (label, _) in given.items():
        if name not in known:
            raise ConfigurationError(f"{label}: there is no such setting{_suggestion(name, known)}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower().replace("-", "_"), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(sorted(known))}"


def _refuse_contradictions(settings: Settings) -> None:
    # Just before a renewal a third of the lease is over; what starts then must still end before the margin.
    longest = settings.lease_ttl * 2 / 3 - settings.lease_margin
    if settings.publish_timeout > longest:
        raise ConfigurationError(
            f"publish_timeout ({spell(settings.publish_timeout)}) must be at most {spell(longest)} with a lease_ttl of "
            f"{spell(settings.lease_ttl)}: a publish may not outlive its lease. Lower it, or raise lease_ttl"
        )
    if settings.breaker_initial > settings.breaker_cap:
        raise ConfigurationError(
            f"breaker_initial ({spell(settings.breaker_initial)}) must be at most breaker_cap "
            f"({spell(settings.breaker_cap)})"
        )


def _cautions(settings: Settings) -> Iterable[tuple[str, bool]]:
    horizon = retries.horizon(settings.retry) or 0.0
    yield (
        f"dedupe_window ({spell(settings.dedupe_window)}) is shorter than the retries may take ({spell(horizon)}): "
        "a key may be forgotten while its message is still being tried",
        settings.dedupe_window < horizon,
    )
    yield (
        f"retention ({spell(settings.retention or 0)}) is shorter than clean_interval "
        f"({spell(settings.clean_interval)}): delivered messages stay until the next cleaning",
        settings.retention is not None and settings.retention < settings.clean_interval,
    )


def _configuration(given: _Given, file: Path | None, ignored: tuple[str, ...]) -> Configuration:
    own = {name: entry for name, entry in given.items() if name not in _SETTINGS}
    values = {name: _NAMES[name](label, value) for name, (label, value) in own.items()}
    settings = _settings({name: entry for name, entry in given.items() if name in _SETTINGS})
    if "publisher" in values and "*" in values.get("routes", {}):
        raise ConfigurationError("publisher and the route '*' both take what no other route matches; keep one of them")
    return Configuration(**values, settings=settings, file=file, ignored=ignored)


def _merged(sources: Iterable[_Given]) -> _Given:
    merged: _Given = {}
    for source in sources:
        _refuse_unknown(source, _NAMES)
        given = {name: entry for name, entry in source.items() if entry[1] is not None}
        if given.keys() & {"publisher", "routes"}:
            merged = {name: entry for name, entry in merged.items() if name not in ("publisher", "routes")}
        merged |= given
    return merged


def _find(path: str | os.PathLike[str] | None, directory: Path) -> Path | None:
    if path is not None:
        if not Path(path).is_file():
            raise ConfigurationError(f"the configuration file {os.fspath(path)!r} does not exist, or is not a file")
        return Path(path)
    if (directory / FILE).is_file():
        return directory / FILE
    project = directory / PROJECT_FILE
    return project if project.is_file() and _table(project) else None


def _from_file(file: Path | None) -> _Given:
    if file is None:
        return {}
    return {name: (f"{name} in {file.name}", value) for name, value in _table(file).items()}


def _table(file: Path) -> Mapping[str, object]:
    table: object = _parsed(file)
    for name in ("tool", "postroom") if file.name == PROJECT_FILE else ():
        table = cast(Mapping[str, object], table).get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigurationError(f"{file}: [tool.postroom] is no table; write one setting per line below it")
    return cast(Mapping[str, object], table)


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> tuple[_Given, tuple[str, ...]]:
    found = {name: value for name, value in environ.items() if name.startswith(PREFIX) and name != FILE_VARIABLE}
    given: _Given = {}
    ignored: list[str] = []
    for variable, value in found.items():
        name = variable.removeprefix(PREFIX).lower()
        if name in _NAMES:
            given[name] = (variable, _structured(variable, value))
        elif near := get_close_matches(name, _NAMES, n=1, cutoff=0.8):
            ignored.append(f"{variable} is ignored; did you mean {PREFIX}{near[0].upper()}?")
    return given, tuple(ignored)


def _structured(variable: str, value: str) -> object:
    """Tables and lists are written as JSON; an empty variable is an unset one."""
    if not value.lstrip().startswith(("{", "[")):
        return value or None
    try:
        return json.loads(value)
    except ValueError as error:
        raise ConfigurationError(f"{variable} is not valid JSON: {error}") from error


def _from_flags(flags: Mapping[str, object]) -> _Given:
    return {name: (f"--{name.replace('_', '-')}", value) for name, value in flags.items()}
