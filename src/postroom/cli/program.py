"""The program `postroom`: its commands, its log, and how it ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import click

from . import doctor, inbox, look, mend, run
from .failure import STATUSES, USAGE, tell
from .invocation import located, printing


class Program(click.Group):
    """The commands. What is wrong with the flags is told like any other error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the flow, not of the alphabet."""
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(args, *rest, standalone_mode=False, **extra)
        try:
            status = super().main(args, *rest, standalone_mode=False, **extra)
        except click.ClickException as error:
            tell(_sentence(error))
            status = error.exit_code
        except click.Abort:
            tell("nothing was done")
            status = USAGE
        sys.exit(status if isinstance(status, int) else 0)


def _sentence(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return text
    return f"{text}{' See' if text.endswith('?') else '; see'} `{context.command_path} --help`"


@click.group("postroom", cls=Program, invoke_without_command=True, epilog=STATUSES)
@click.version_option(version("postroom"), prog_name="postroom")
@located
@printing
@click.pass_context
def program(context: click.Context) -> None:
    """Postroom delivers what your application wrote to its outbox.

    Settings come from postroom.toml (or [tool.postroom] in pyproject.toml), from POSTROOM_* variables and from flags;
    the later wins. Options of the program may stand before or after the name of the command.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (
    run.init, run.relay, run.drain, look.status, look.list_messages, look.show, look.holds, mend.revive, mend.discard,
    mend.replay, mend.clean, inbox.inbox, doctor.doctor, run.demo,
):  # fmt: skip
    program.add_command(command)


def main() -> None:
    """The entry point of `postroom` and of `python -m postroom`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its number.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    program(prog_name="postroom")
