"""Whatever is done with sessions and savepoints, a message exists if and only if its transaction committed.

What the generated histories taught about SQLAlchemy, and `connections/session.py` has to know:

- `before_commit` fires for the release of a savepoint too, and does not say for whose sake it fires.
- The root transaction can be committed over open savepoints (`with session.begin()` does it): then it fires for the
  root first, while the savepoint is still the session's current transaction.
- A rollback of an outer savepoint ends the inner ones without a rollback event of their own; only
  `after_transaction_end` comes for each.
- If a hook raises within `before_commit`, the transaction stays as it is and can be committed afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, SessionTransaction, mapped_column

from postroom.outbox import Outbox

DEEPEST = 4
OUTBOXES = (Outbox("first"), Outbox("second", order="strict"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Refused(Exception):
    """Raised by a hook, to make a commit fail."""


class Hook:
    """An application's own `before_commit`: each time it is armed it adds a message, or refuses, once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.task: str | None = None

    def __call__(self, session: Session) -> None:
        task, self.task = self.task, None
        if task == "add":
            self.client.add(0)
        elif task == "refuse":
            raise Refused


def open_engine(path: Path) -> Engine:
    """With SQLAlchemy's recipe for savepoints on SQLite."""

    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous = OFF")

    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


@cache
def empty_database() -> bytes:
    """Made once: twenty-four tables take longer than a history."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        engine = open_engine(path)
        Base.metadata.create_all(engine)
        for outbox in OUTBOXES:
            outbox.create_tables(engine)
        engine.dispose()
        return path.read_bytes()


class Client:
    """A session, and the model of it: a stack of what each open level has added."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(empty_database())
        self.engine = open_engine(path)
        self.session = Session(self.engine)
        self.early, self.late = Hook(self), Hook(self)
        event.listen(self.session, "before_commit", self.early)
        self.savepoints: list[SessionTransaction] = []
        self.levels: list[list[tuple[int, int]]] = [[]]
        self.committed: list[tuple[int, int]] = []
        self.last = 0

    def add(self, place: int) -> None:
        self.last += 1
        OUTBOXES[place].add(self.session, "orders", self.last, key="k")
        self.levels[-1].append((place, self.last))

    def release(self, depth: int) -> None:
        """Levels from `depth` on become part of the one below."""
        for level in self.levels[depth:]:
            self.levels[depth - 1].extend(level)
        del self.levels[depth:], self.savepoints[depth - 1 :]

    def undo(self, depth: int) -> None:
        del self.levels[depth:], self.savepoints[max(depth - 1, 0) :]
        if depth == 0:
            self.levels.append([])

    def commit(self) -> None:
        self.release(1)
        self.committed.extend(self.levels[0])
        self.undo(0)

    def found(self) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        with self.engine.connect() as connection:
            for place, outbox in enumerate(OUTBOXES):
                table = outbox.tables.hot
                payloads = connection.scalars(select(table.c.payload).order_by(table.c.position))
                rows.extend((place, int(payload)) for payload in payloads)
        return rows


class Sessions(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.clients = [Client(self.folder / f"{number}.db") for number in range(2)]

    # Mostly one of them, so that histories get deep; the other is there to be left alone.
    clients_drawn = st.sampled_from([0, 0, 0, 1])

    def has_savepoint(self) -> bool:
        return any(client.savepoints for client in self.clients)

    def draw_savepoint(self, data: st.DataObject) -> tuple[Client, int]:
        client = data.draw(st.sampled_from([client for client in self.clients if client.savepoints]), label="client")
        return client, data.draw(st.integers(1, len(client.savepoints)), label="depth")

    @rule(number=clients_drawn, place=st.integers(0, 1), change=st.booleans(), flush=st.booleans())
    def add(self, number: int, place: int, change: bool, flush: bool) -> None:
        client = self.clients[number]
        client.add(place)
        # Behind ours, which came with the first message outside a hook.
        if not event.contains(client.session, "before_commit", client.late):
            event.listen(client.session, "before_commit", client.late)
        if change:
            client.session.add(Order())
        if flush:
            client.session.flush()

    @rule(number=clients_drawn)
    def begin_nested(self, number: int) -> None:
        client = self.clients[number]
        if len(client.savepoints) < DEEPEST:
            client.savepoints.append(client.session.begin_nested())
            client.levels.append([])

    @precondition(has_savepoint)
    @rule(task=st.sampled_from(["add", None]), late=st.booleans(), data=st.data())
    def release(self, task: str | None, late: bool, data: st.DataObject) -> None:
        client, depth = self.draw_savepoint(data)
        self.arm(client, task, late)
        client.savepoints[depth - 1].commit()
        client.release(depth)

    @precondition(has_savepoint)
    @rule(data=st.data())
    def roll_back_a_savepoint(self, data: st.DataObject) -> None:
        client, depth = self.draw_savepoint(data)
        client.savepoints[depth - 1].rollback()
        client.undo(depth)

    @rule(number=clients_drawn, task=st.sampled_from(["add", None]), late=st.booleans(), over=st.booleans())
    def commit(self, number: int, task: str | None, late: bool, over: bool) -> None:
        """`over`: the root transaction itself, over open savepoints."""
        client = self.clients[number]
        self.arm(client, task, late)
        root = client.session.get_transaction()
        if over and root is not None:
            root.commit()
        else:
            client.session.commit()
        client.commit()
        self.check(client)

    @rule(number=clients_drawn, late=st.booleans(), over=st.booleans())
    def commit_in_vain(self, number: int, late: bool, over: bool) -> None:
        client = self.clients[number]
        if not self.arm(client, "refuse", late):
            return
        root = client.session.get_transaction()
        with pytest.raises(Refused):
            (root if over and root is not None else client.session).commit()

    @rule(number=clients_drawn)
    def fail_to_flush(self, number: int) -> None:
        client = self.clients[number]
        client.session.add(Order(id=-1))
        client.session.flush()
        client.session.expunge_all()
        client.session.add(Order(id=-1))
        with pytest.raises(IntegrityError):
            client.session.flush()
        if client.savepoints:
            client.savepoints[-1].rollback()
            client.undo(len(client.savepoints))
        else:
            client.session.rollback()
            client.undo(0)

    @rule(number=clients_drawn, close=st.booleans())
    def give_up(self, number: int, close: bool) -> None:
        client = self.clients[number]
        if close:
            client.session.close()
        else:
            client.session.rollback()
        client.undo(0)

    def arm(self, client: Client, task: str | None, late: bool) -> bool:
        """Whether the hook will be called: the late one is there only after the first message."""
        hook = client.late if late else client.early
        if not event.contains(client.session, "before_commit", hook):
            return False
        hook.task = task
        return True

    def check(self, client: Client) -> None:
        found = client.found()
        assert found == sorted(client.committed, key=lambda row: row[0])

    def teardown(self) -> None:
        for client in getattr(self, "clients", []):
            client.session.commit()
            client.commit()
            self.check(client)
            client.session.close()
            client.engine.dispose()
        shutil.rmtree(self.folder, ignore_errors=True)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(stateful_step_count=40, max_examples=200)
