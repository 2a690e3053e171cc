"""Options that several commands share: which messages, and the settings of a relay, which are read off `Settings`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar, cast, get_args

import click

from ..desk import Which
from ..duration import seconds, spell
from ..errors import ConfigurationError
from ..retry import Steps
from ..routing import PerTopic
from ..settings import Claim, Settings

Command = TypeVar("Command", bound=Callable[..., Any])

# --- which messages


def duration_option(name: str, *, help: str, default: str | None = None) -> Callable[[Command], Command]:
    return click.option(name, metavar="DURATION", callback=_read_duration, default=default, help=help)


def _read_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else seconds(value)
    except ConfigurationError as error:
        raise click.BadParameter(f"{value!r} is not a length of time; write it as in 30s, 5m or 1h30m") from error


COUNT = click.IntRange(min=1)

_FILTERS = (
    click.option("--topic", metavar="GLOB", help="Of topics that match."),
    click.option("--key", metavar="KEY", help="Of this key."),
    click.option("--type", "type", metavar="GLOB", help="Of message types that match."),
    duration_option("--older-than", help="Added longer ago than this."),
    duration_option("--newer-than", help="Added less long ago than this."),
)


def filters(command: Command) -> Command:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def chosen(command: Command) -> Command:
    """Ids, or filters, or --all: which messages to change."""
    command = click.option("--limit", type=COUNT, metavar="NUMBER", help="At most so many, the oldest first.")(command)
    command = click.option("--all", "all", is_flag=True, help="All of them, without a filter.")(command)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(filters(command))


def check_choice(ids: tuple[str, ...], which: Which) -> None:
    """Refuse what does not say which messages, in the words of the command line."""
    given = [name for name, value in which.items() if name != "limit" and value]
    if ids and given:
        raise click.UsageError("give ids, or filters such as --topic, not both")
    if not ids and not given:
        raise click.UsageError("which messages? Give ids, a filter such as --topic, or --all")
    if which.get("all") and len(given) > 1:
        raise click.UsageError("--all means no filter: leave one of them out")


# --- the settings of a relay


def settings(command: Command) -> Command:
    """A flag for every setting."""
    for item in reversed(fields(Settings)):
        command = _flag(item)(command)
    return command


def spelled(value: object) -> str:
    """A default, as a user would write it."""
    if isinstance(value, PerTopic):
        return spelled(cast("PerTopic[object]", value).default)
    if isinstance(value, Steps):
        return " ".join(["steps", *map(spelled, value.waits)])
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}s" if 1 <= value < 60 else spell(value)
    return str(value)


def default_of(item: Field[Any]) -> str:
    return spelled(item.default)


def _flag(item: Field[Any]) -> Callable[[Command], Command]:
    name = item.name.replace("_", "-")
    about = f"{item.metadata['about']}  [{default_of(item)}]"
    if isinstance(item.default, bool):
        return click.option(f"--{name}/--no-{name}", default=None, help=about)
    return click.option(f"--{name}", metavar=_metavar(item), callback=_structured, help=about)


def _metavar(item: Field[Any]) -> str:
    special = {
        "claim": "|".join(get_args(Claim)),
        "retry": "POLICY",
        "on_dead": "block|continue|JSON",
        "revive_after": "DURATION|JSON",
        "latest_only": "true|false|JSON",
        "max_rate": "NUMBER",
    }
    return special.get(item.name) or ("DURATION" if "float" in str(item.type) else "NUMBER")


def _structured(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    """Tables and lists are written as JSON, as in variables."""
    if value is None or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"it begins like JSON, but is not: {error}") from error


# --- where messages go


def destinations(command: Command) -> Command:
    command = click.option(
        "--route", "routes", multiple=True, metavar="GLOB=URL", callback=_routes,
        help="Topics that match go there, as in 'orders.*=stdout:'. May be repeated; the first match wins.",
    )(command)  # fmt: skip
    command = click.option(
        "--app", metavar="MODULE:TASKS", help="Tasks that the relay runs itself, as in shop.tasks:tasks."
    )(command)
    return click.option(
        "--publisher", "--to", "publisher", metavar="URL", help="Takes what no route matches, as in stdout:"
    )(command)


def _routes(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Mapping[str, str] | None:
    pairs = [text.partition("=") for text in value]
    for text, (glob, equals, url) in zip(value, pairs, strict=True):
        if not (glob and equals and url):
            raise click.BadParameter(f"{text!r} is no route; write GLOB=URL, as in 'orders.*=stdout:'")
    return {glob: url for glob, _, url in pairs} or None
