"""What an inbox is asked, as a procedure for databases and as plain Python for a memory store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from ..clock import Clock
from ..message import new_id
from ..stores.schema import Moment
from .inbox_statements import InboxStatements
from .procedure import Procedure, Step, Values
from .statements import in_pieces

T_co = TypeVar("T_co", covariant=True)

Name = tuple[str, ...]


class Notes(Protocol):
    """What one inbox remembers in a memory store, seen from within a transaction."""

    def now(self) -> datetime: ...

    def recall(self, name: Name) -> Any: ...

    def note(self, name: Name, value: Any) -> None:
        """Remember it, or forget it if it is None."""
        ...

    def noted(self, kind: str) -> Iterable[tuple[Name, Any]]: ...


class Request(Protocol[T_co]):
    def through(self, statements: InboxStatements) -> Procedure[T_co]: ...

    def within(self, notes: Notes) -> T_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTime:
    """Whoever finds its own token was first: row counts lie on MySQL."""

    consumer: str
    message_id: str
    clock: Clock | None = None

    def through(self, statements: InboxStatements) -> Procedure[bool]:
        token = new_id()
        row: Values = {"consumer": self.consumer, "message_id": self.message_id, "token": token}
        if self.clock is not None:
            row = {**row, "received_at": self.clock.now()}
        found = yield Step(statements.remember, [row], returns=statements.tells_new)
        if not statements.tells_new:
            name = {"the_consumer": self.consumer, "the_message_id": self.message_id}
            found = yield Step(statements.token, [name], returns=True)
        return [value for (value,) in found] == [token]

    def within(self, notes: Notes) -> bool:
        name = ("message", self.consumer, self.message_id)
        if notes.recall(name) is not None:
            return False
        notes.note(name, notes.now() if self.clock is None else self.clock.now())
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was noted with a message, nothing if it was handled without; None if it is not known. It is locked."""

    consumer: str
    message_id: str

    def through(self, statements: InboxStatements) -> Procedure[str | None]:
        if statements.takes_turns:
            yield Step(statements.take_turn)
        name = {"the_consumer": self.consumer, "the_message_id": self.message_id}
        found = yield Step(statements.sent, [name], returns=True)
        return (found[0][0] or "") if found else None

    def within(self, notes: Notes) -> str | None:
        if notes.recall(("message", self.consumer, self.message_id)) is None:
            return None
        return notes.recall(("sent", self.consumer, self.message_id)) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSent:
    consumer: str
    message_id: str
    text: str

    def through(self, statements: InboxStatements) -> Procedure[None]:
        name = {"the_consumer": self.consumer, "the_message_id": self.message_id}
        yield Step(statements.note_sent, [{**name, "text": self.text}])

    def within(self, notes: Notes) -> None:
        notes.note(("sent", self.consumer, self.message_id), self.text)


class Mark(NamedTuple):
    """How far a consumer is with a topic and key."""

    generation: int
    sequence: int


NEVER_SEEN = Mark(-1, -1)


class Gap(NamedTuple):
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whether it is this message's turn: True and the mark is moved, False for what is old, or the gap before it.

    The mark is locked until the transaction ends. With `leaps` a gap is no obstacle: then it moved, too.
    """

    consumer: str
    topic: str
    key: str
    message: Mark
    leaps: bool
    clock: Clock | None = None

    def through(self, statements: InboxStatements) -> Procedure[bool | Gap]:
        place = {"the_consumer": self.consumer, "the_topic": self.topic, "the_key": self.key}
        find = Step(statements.mark, [place], returns=True)
        found = (yield find) if statements.looks_first else ()
        if not found:
            yield Step(statements.make_mark, [self._new()])
            found = yield find
        ((generation, sequence),) = found
        verdict = self._judge(Mark(generation, sequence))
        if self._moves(verdict):
            yield Step(statements.move, [{**place, **self._moved()}])
        return verdict

    def within(self, notes: Notes) -> bool | Gap:
        name = ("mark", self.consumer, self.topic, self.key)
        verdict = self._judge(notes.recall(name) or NEVER_SEEN)
        if self._moves(verdict):
            notes.note(name, self.message)
        return verdict

    def _judge(self, mark: Mark) -> bool | Gap:
        if self.message <= mark:
            return False
        expected = mark.sequence + 1 if self.message.generation == mark.generation else 1
        return True if mark == NEVER_SEEN or self.message.sequence == expected else Gap(expected)

    def _moves(self, verdict: bool | Gap) -> bool:
        return verdict is True or (self.leaps and isinstance(verdict, Gap))

    def _new(self) -> Values:
        row: Values = {"consumer": self.consumer, "topic": self.topic, "key": self.key, **NEVER_SEEN._asdict()}
        return row if self.clock is None else {**row, "updated_at": self.clock.now()}

    def _moved(self) -> Values:
        moved: Values = {"new_generation": self.message.generation, "new_sequence": self.message.sequence}
        return moved if self.clock is None else {**moved, "now": self.clock.now()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """Forget messages that are older than `window` seconds, the oldest first, at most `limit`. Marks are kept."""

    window: float
    limit: int
    clock: Clock | None = None

    def through(self, statements: InboxStatements) -> Procedure[int]:
        if statements.takes_turns:
            yield Step(statements.take_turn)
        until = self._until()
        found = yield Step(statements.old, [{**until, "most": self.limit}], returns=True)
        for consumer, rows in groupby(sorted(found), key=itemgetter(0)):
            for piece in in_pieces([id for _, id in rows]):
                ids = {f"id_{number}": id for number, id in enumerate(piece)}
                yield Step(statements.forget(len(piece)), [{"the_consumer": consumer, **ids, **until}])
        return len(found)

    def within(self, notes: Notes) -> int:
        now = notes.now() if self.clock is None else self.clock.now()
        until = now - timedelta(seconds=self.window)
        old = sorted((at, name) for name, at in notes.noted("message") if at <= until)[: self.limit]
        for _, (_, *message) in old:
            notes.note(("message", *message), None)
            notes.note(("sent", *message), None)
        return len(old)

    def _until(self) -> Values:
        if self.clock is None:
            return {"age": -self.window}
        return {"until": self.clock.now() - timedelta(seconds=self.window)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """What an inbox remembers for one consumer: how many messages, since when, and how many keys of strict streams."""

    name: str
    messages: int
    oldest: datetime | None
    newest: datetime | None
    keys: int


@dataclass(frozen=True, slots=True)
class Census:
    """Every consumer, by name. All rows are counted, which takes its time if they are many."""

    def through(self, statements: InboxStatements) -> Procedure[list[Consumer]]:
        found = yield Step(statements.consumers, returns=True)
        marked = yield Step(statements.marked, returns=True)
        return _consumers({name: tuple(facts) for name, *facts in found}, dict(marked))

    def within(self, notes: Notes) -> list[Consumer]:
        times: dict[str, list[datetime]] = {}
        for (_, consumer, *_), at in notes.noted("message"):
            times.setdefault(consumer, []).append(at)
        keys: dict[str, int] = {}
        for (_, consumer, *_), _ in notes.noted("mark"):
            keys[consumer] = keys.get(consumer, 0) + 1
        return _consumers({name: (len(each), min(each), max(each)) for name, each in times.items()}, keys)


def _consumers(messages: dict[str, tuple[Any, ...]], keys: dict[str, int]) -> list[Consumer]:
    def each() -> Iterator[Consumer]:
        for name in sorted({*messages, *keys}):
            count, oldest, newest = messages.get(name, (0, None, None))
            yield Consumer(
                name=name, messages=count, oldest=_read(oldest), newest=_read(newest), keys=keys.get(name, 0)
            )

    return list(each())


_MOMENT: Any = Moment()


def _read(value: Any) -> datetime | None:
    """As drivers give it: text on SQLite, without a time zone on MySQL."""
    return _MOMENT.process_result_value(value, None)
