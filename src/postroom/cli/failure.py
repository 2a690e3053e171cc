"""What a command ends with: one sentence on standard error, and a status that scripts can rely on."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress

import click

from ..errors import ConfigurationError, InvalidMessage, PostroomError, StoreError
from ..redact import redact

FINE = 0
ATTENTION = 1
USAGE = 2
DATABASE = 3
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

STATUSES = f"""\
\b
Exit status:
  {FINE}   fine
  {ATTENTION}   it ran, but something needs attention: messages died or are held, no such
      message, `status --check` found a backlog that does not drain, `doctor` a
      problem
  {USAGE}   a flag, the configuration or a URL is wrong
  {DATABASE}   the database cannot be used: unreachable, tables missing or too new
  {INTERNAL}  a bug; run again with --verbose and report it
"""


@contextmanager
def translated(verbose: bool) -> Generator[None]:
    """Turn whatever a command raises into a sentence and an exit status."""
    try:
        yield
        sys.stdout.flush()
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except PostroomError as error:
        _end(sentence(error), status_of(error))
    except Exception as error:
        if verbose:
            traceback.print_exc()
        hint = "" if verbose else "; run with --verbose for the traceback"
        _end(f"unexpected {type(error).__name__}: {sentence(error)}{hint}", INTERNAL)


def status_of(error: PostroomError) -> int:
    if isinstance(error, (ConfigurationError, InvalidMessage)):
        return USAGE
    return DATABASE if isinstance(error, StoreError) else ATTENTION


def sentence(error: BaseException) -> str:
    return redact(" ".join(str(error).split()))


def tell(text: str) -> None:
    click.echo(f"error: {text}", err=True)


def _end(text: str, status: int) -> None:
    tell(text)
    raise click.exceptions.Exit(status)


def _silence_stdout() -> None:
    """The reader has gone. What is still buffered must go somewhere, or Python complains when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
