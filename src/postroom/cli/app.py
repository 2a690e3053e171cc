"""The tasks of an application, found by name."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module

from ..configuration import Configuration
from ..errors import ConfigurationError
from ..outbox import Outbox
from ..tasks import Tasks


def with_tasks(configuration: Configuration, place: str) -> tuple[Configuration, Tasks]:
    """The tasks at `module:object`, and a configuration for the outbox that they are scheduled in."""
    tasks = _load(place)
    ours = Outbox(configuration.name, prefix=configuration.prefix, schema=configuration.schema)
    if (configuration.name, configuration.prefix, configuration.schema) == ("default", None, None):
        outbox = tasks.outbox
        return replace(configuration, name=outbox.name, prefix=outbox.prefix, schema=outbox.schema), tasks
    if (ours.name, ours.prefix, ours.schema) != (tasks.outbox.name, tasks.outbox.prefix, tasks.outbox.schema):
        raise ConfigurationError(
            f"the tasks of {place} are scheduled in {tasks.outbox!r}, and this relay would serve {ours!r}: leave out "
            "the outbox's name, prefix and schema, or give the same"
        )
    return configuration, tasks


def _load(place: str) -> Tasks:
    """Modules are looked for where the command was given, too, as `python -m` does."""
    module, _, attribute = place.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"the tasks {place!r} cannot be loaded: {error}") from error
    if not isinstance(found, Tasks):
        raise ConfigurationError(f"{place!r} is a {type(found).__name__}; --app needs a postroom.Tasks")
    return found
