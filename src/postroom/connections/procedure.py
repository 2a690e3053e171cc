"""How work is done through a connection, without doing it: a generator yields statements and is sent their rows.

So that one procedure serves every connection, sync or async, a connection's file only has to run one statement.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import Engine
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.base import Executable

from ..errors import ConfigurationError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
What_contra = TypeVar("What_contra", contravariant=True)

APART = "what it writes would be committed apart from your data"
"""Why a connection that autocommits is refused."""

Values = Mapping[str, Any]
Rows = Sequence[tuple[Any, ...]]


class Step(NamedTuple):
    """One statement to execute: for each of the parameters, or once if there is only one set of them."""

    statement: Executable | ExecutableDDLElement
    parameters: Sequence[Values] = ()
    returns: bool = False
    """Whether the rows are wanted."""


class Pause(NamedTuple):
    """Instead of a statement: wait, without holding anybody up if that can be helped."""

    seconds: float


Procedure = Generator[Step | Pause, Rows, T]
"""What it returns is the result of the work."""


class Clerk(Protocol[What_contra, T_co]):
    """Whose work it is, as far as connections need to know: an outbox's `Writer`, an inbox's `Keeper`."""

    @property
    def kind(self) -> str:
        """`outbox` or `inbox`, for errors."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def bind(self) -> Engine | None:
        """Which database is meant, of those that a session knows."""
        ...

    def procedure(
        self, what: What_contra, /, dialect_name: str, connection: object = None, place: object = None
    ) -> Procedure[T_co]:
        """What is to be done, in the transaction that the connection is in.

        `connection` is what answers may be remembered for, if that makes sense; `place` stands for the database, if it
        is not the connection that does.
        """
        ...

    def creation(self, dialect_name: str) -> Procedure[None]:
        """Make the tables, as far as they are missing."""
        ...


def sync_engine(bind: Any) -> Engine | None:
    engine = getattr(bind, "sync_engine", bind)
    if engine is None or isinstance(engine, Engine):
        return engine
    raise ConfigurationError(f"bind={bind!r} is no SQLAlchemy engine; give an Engine or an AsyncEngine")
