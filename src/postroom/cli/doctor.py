"""The command that looks for what is wrong: doctor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from ..configuration import Configuration
from ..desk import Desk
from ..ports import Finding
from . import document
from .failure import ATTENTION
from .invocation import Command, Invocation, located, passed, place_of, printing
from .options import destinations
from .output import print_facts, print_json

MARKS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}


@click.command(cls=Command)
@destinations
@located
@printing
@passed
def doctor(invocation: Invocation, **flags: Any) -> None:
    """Look for what is wrong or soon will be, and say what to do about it.

    Destinations that are configured, or given here, are asked whether they would take messages; nothing is sent.
    Status 1 if there is a problem: something that keeps messages from being delivered. Warnings alone are status 0.
    """
    configuration = invocation.configuration(**flags)
    routes = configuration.destinations()
    look = partial(Desk.doctor, publishers=None if routes is None else dict(routes.targets))
    found = [*invocation.ask(look, configuration), *_cautions(configuration)]
    if invocation.json:
        print_json(_document(found, configuration))
    else:
        _print(found)
    if _worst(found) == "problem":
        raise click.exceptions.Exit(ATTENTION)


def _cautions(configuration: Configuration) -> list[Finding]:
    return [
        Finding(name="settings", verdict="warning", seen=caution, remedy="change it in the configuration")
        for caution in configuration.settings.cautions()
    ]


def _document(found: Sequence[Finding], configuration: Configuration) -> document.Document:
    return {
        "outbox": configuration.name,
        "store": place_of(configuration),
        "verdict": _worst(found),
        "findings": [document.of_finding(finding) for finding in found],
    }


def _worst(found: Sequence[Finding]) -> str:
    verdicts = {finding.verdict for finding in found}
    return next((verdict for verdict in ("problem", "warning") if verdict in verdicts), "ok")


def _print(found: Sequence[Finding]) -> None:
    """What needs attention last, where the eye is when the command ends."""
    for verdict in ("ok", "warning", "problem"):
        for finding in map(document.of_finding, (one for one in found if one.verdict == verdict)):
            print_facts([(f"{MARKS[verdict]:7}  {finding['name']}", finding["seen"])])
            if finding["remedy"]:
                print_facts([(" " * 7, finding["remedy"])])
