"""Where settings come from: a file, the environment, flags."""

# ruff: noqa: RUF009 - `setting` is `dataclasses.field`, and all defaults are immutable

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from .errors import ConfigurationError
from .routing import Routes
from .serialize import Serializer, resolve
from .settings import (
    SETTINGS,
    Given,
    Settings,
    compose_settings,
    naming,
    read_text,
    readers_of,
    refuse_unknown,
    setting,
)

FILE = "postroom.toml"
PROJECT_FILE = "pyproject.toml"
PREFIX = "POSTROOM_"
FILE_VARIABLE = "POSTROOM_CONFIG"


def _routes(name: str, value: object) -> Mapping[str, str]:
    if isinstance(value, Mapping) and value:
        entries = cast(Mapping[str, object], value).items()
        targets = {glob: read_text(f"{name}[{glob!r}]", url) for glob, url in entries}
        with naming(name):
            return Routes(targets).targets
    raise ConfigurationError(f'{name}: write a table of globs and URLs, such as {{"orders.*" = "stdout:"}}')


def _place(name: str, value: object) -> str:
    module, colon, attribute = read_text(name, value).partition(":")
    if module and colon and attribute:
        return f"{module}:{attribute}"
    raise ConfigurationError(f"{name}: {value!r} names no object; write module:object, as in shop.tasks:tasks")


def _serializer(name: str, value: object) -> Serializer:
    with naming(name):
        return resolve(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the command line needs to know: where the outbox is, where messages go, and the relay's settings."""

    name: str = setting("default", read_text, "The outbox's name.")
    prefix: str | None = setting(None, read_text, "What the names of the tables begin with.")
    schema: str | None = setting(None, read_text, "The database schema of the tables.")
    store: str | None = setting(None, read_text, "The database's URL.")
    publisher: str | None = setting(None, read_text, "The URL that takes what no route matches.")
    routes: Mapping[str, str] = field(
        default_factory=dict[str, str], metadata={"read": _routes, "about": "Globs on topics, and the URLs they go to."}
    )
    app: str | None = setting(None, _place, "Where the tasks are that relays run, as in shop.tasks:tasks.")
    serializer: Serializer | None = setting(None, _serializer, "'json' or the dotted name of a serializer.")
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


_NAMES = {**readers_of(Configuration), **SETTINGS}


def _configuration(given: Given, file: Path | None, ignored: tuple[str, ...]) -> Configuration:
    own = {name: entry for name, entry in given.items() if name not in SETTINGS}
    values = {name: _NAMES[name](label, value) for name, (label, value) in own.items()}
    settings = compose_settings({name: entry for name, entry in given.items() if name in SETTINGS})
    if "publisher" in values and "*" in values.get("routes", {}):
        raise ConfigurationError("publisher and the route '*' both take what no other route matches; keep one of them")
    return Configuration(**values, settings=settings, file=file, ignored=ignored)


def _merged(sources: Iterable[Given]) -> Given:
    merged: Given = {}
    for source in sources:
        refuse_unknown(source, _NAMES)
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


def _from_file(file: Path | None) -> Given:
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


def _from_environment(environ: Mapping[str, str]) -> tuple[Given, tuple[str, ...]]:
    found = {name: value for name, value in environ.items() if name.startswith(PREFIX) and name != FILE_VARIABLE}
    given: Given = {}
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


def _from_flags(flags: Mapping[str, object]) -> Given:
    return {name: (f"--{name.replace('_', '-')}", value) for name, value in flags.items()}
