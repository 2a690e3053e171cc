"""One run of the program: what was given on the command line, the configuration, and the desk it asks."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from ..configuration import Configuration, load
from ..desk import Desk
from ..errors import ConfigurationError
from ..outbox import Outbox
from ..redact import redact
from .failure import translated
from .output import note

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

TALKATIVE = ("pika",)
"""Libraries that log as errors what the relay tells anyway, in fewer words."""


@dataclass(slots=True)
class Invocation:
    """Filled in by the options of the program and of the command, whichever side they were written on."""

    given: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def json(self) -> bool:
        return bool(self.given.get("json"))

    @property
    def verbose(self) -> bool:
        return bool(self.given.get("verbose"))

    def configuration(self, **flags: object) -> Configuration:
        """From the file, the environment and the flags."""
        own = {name: self.given.get(name) for name in ("store", "name", "prefix", "schema")}
        configuration = load(self.given.get("config"), flags={**own, **flags})
        known = configuration.settings.cautions()  # the relay says these itself
        for caution in configuration.cautions():
            if caution not in known:
                note(f"warning: {caution}")
        return configuration

    def ask(self, work: Callable[[Desk], Awaitable[T]], configuration: Configuration | None = None) -> T:
        """Open a desk, do the work, close it."""
        configuration = configuration or self.configuration()
        desk = Desk(store_of(configuration), outbox=outbox_of(configuration))

        async def run() -> T:
            async with desk:
                return await work(desk)

        return asyncio.run(run())


class Command(click.Command):
    """A command that logs to standard error, and ends with a sentence and a status whatever happens."""

    def invoke(self, ctx: click.Context) -> Any:
        invocation = ctx.ensure_object(Invocation)
        with logging_to_stderr(self._level(invocation)), translated(invocation.verbose):
            return super().invoke(ctx)

    def _level(self, invocation: Invocation) -> int:
        """A relay tells of itself, other commands of trouble only."""
        if invocation.verbose:
            return logging.DEBUG
        return logging.INFO if self.name == "relay" else logging.WARNING


@contextmanager
def logging_to_stderr(level: int) -> Generator[None]:
    log, handler = logging.getLogger("postroom"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    hushed = [] if level == logging.DEBUG else [logging.getLogger(name) for name in TALKATIVE]
    silence = logging.NullHandler()
    for other in hushed:
        other.addHandler(silence)  # else what nobody handles is printed
    try:
        yield
    finally:
        for other in hushed:
            other.removeHandler(silence)
        log.removeHandler(handler)
        log.setLevel(before)


passed = click.make_pass_decorator(Invocation, ensure=True)


def store_of(configuration: Configuration) -> str:
    if configuration.store is None:
        raise ConfigurationError(
            "no database is configured: give --store sqlite:///app.db, set POSTROOM_STORE, "
            'or write store = "sqlite:///app.db" in postroom.toml'
        )
    return configuration.store


def outbox_of(configuration: Configuration) -> Outbox:
    return Outbox(
        configuration.name,
        prefix=configuration.prefix,
        schema=configuration.schema,
        serializer=configuration.serializer or "json",
        dedupe_window=configuration.settings.dedupe_window,
    )


def place_of(configuration: Configuration) -> str:
    """Where the outbox is, as it may be shown."""
    return redact(configuration.store or "")


# --- options that may stand before or after the name of the command


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    # What was not given here must not hide what was given before the command.
    if value is not None and value is not False:
        context.ensure_object(Invocation).given[str(parameter.name)] = value


def _option(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    return click.option(*names, expose_value=False, callback=_remember, **attributes)


_LOCATION = (
    _option("--store", metavar="URL", help="The database, such as sqlite:///app.db."),
    _option("--config", metavar="FILE", help="The configuration file, instead of postroom.toml or pyproject.toml."),
    _option("--name", metavar="NAME", help="The outbox's name.  [default]"),
    _option("--prefix", metavar="PREFIX", help="What the names of its tables begin with."),
    _option("--schema", metavar="SCHEMA", help="The database schema of its tables."),
    _option("-v", "--verbose", is_flag=True, help="Log everything, and show tracebacks."),
)
_JSON = _option("--json", is_flag=True, help="Print one JSON document.")


def located(command: Function) -> Function:
    """Add the options that say which outbox."""
    for option in reversed(_LOCATION):
        command = option(command)
    return command


def printing(command: Function) -> Function:
    """Add --json."""
    return _JSON(command)
