"""A handler in its own transaction, called once for each message."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checks import short
from ..connections import kind_of
from ..errors import ConfigurationError, InvalidMessage
from ..wire.received import Received
from .replies import check_outbox, returned_replies

if TYPE_CHECKING:
    from ..message import Message
    from ..outbox import Outbox
    from .inbox import Inbox

Handler = Callable[[Received, Any], Any]
"""What a user writes: it takes the message and the session, and may be a coroutine function."""
Handled = Callable[[Received], Any]
MakeSession = Callable[[], Any]

logger = logging.getLogger("postroom.inbox")


def handled_once(
    inbox: Inbox, handler: Any, *, consumer: str, make_session: MakeSession, strict: bool, replies: Outbox | None
) -> Handled:
    """See `Inbox.once`."""
    _check(handler, make_session)
    if replies is not None:
        _check_replies(replies, strict)
    once = _Once(inbox, handler, consumer, make_session, strict, replies)

    def handle(received: Received) -> Any:
        return once.handle(received)

    async def handle_async(received: Received) -> Any:
        return await once.handle_async(received)

    return _named(handle_async if _is_async(handler) else handle, handler)


@dataclass(frozen=True, slots=True)
class _Once:
    inbox: Inbox
    handler: Any
    consumer: str
    make_session: MakeSession
    strict: bool
    replies: Outbox | None

    def handle(self, received: Received) -> Any:
        _check_received(received)
        with _opened(self.make_session(), self.handler) as session:
            if not self._is_new(session, received):
                return self._answer_again(session, received)
            result = _plain(self.handler(received, session), self.handler)
            self._answer(session, received, result)
            return result

    async def handle_async(self, received: Received) -> Any:
        _check_received(received)
        async with _opened_async(self.make_session(), self.handler) as session:
            if not await self._is_new_async(session, received):
                return await self._answer_again_async(session, received)
            result = await self.handler(received, session)
            await self._answer_async(session, received, result)
            return result

    def _is_new(self, session: Any, received: Received) -> bool:
        if self.strict:
            return self.inbox.in_turn(session, received, consumer=self.consumer)
        return self.inbox.first_time(session, received.id, consumer=self.consumer) and not received.is_tombstone

    async def _is_new_async(self, session: Any, received: Received) -> bool:
        if self.strict:
            return await self.inbox.in_turn_async(session, received, consumer=self.consumer)
        is_first = await self.inbox.first_time_async(session, received.id, consumer=self.consumer)
        return is_first and not received.is_tombstone

    def _answer(self, session: Any, received: Received, result: Any) -> None:
        if self.replies is not None and (messages := returned_replies(result, _called(self.handler))):
            self.inbox.reply(session, received.id, messages, outbox=self.replies, consumer=self.consumer)

    async def _answer_async(self, session: Any, received: Received, result: Any) -> None:
        if self.replies is not None and (messages := returned_replies(result, _called(self.handler))):
            await self.inbox.reply_async(session, received.id, messages, outbox=self.replies, consumer=self.consumer)

    def _answer_again(self, session: Any, received: Received) -> None:
        again: list[Message] = []
        if self.replies is not None:
            again = self.inbox.reply_again(session, received.id, outbox=self.replies, consumer=self.consumer)
        self._say(received, again)

    async def _answer_again_async(self, session: Any, received: Received) -> None:
        again: list[Message] = []
        if self.replies is not None:
            again = await self.inbox.reply_again_async(
                session, received.id, outbox=self.replies, consumer=self.consumer
            )
        self._say(received, again)

    def _say(self, received: Received, again: Sequence[Message]) -> None:
        what = f"sends again what it sent ({len(again)})" if again else "has nothing to do"
        logger.debug("consumer %r %s for message %s: it is no new one", self.consumer, what, received.id)


def _named(made: Handled, handler: Any) -> Handled:
    """Like the handler, but for its arguments: frameworks look at those."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        if hasattr(handler, name):
            setattr(made, name, getattr(handler, name))
    return made


# --- sessions


@contextmanager
def _opened(made: Any, handler: Any) -> Generator[Any]:
    if not hasattr(made, "__enter__"):
        raise _no_context(made, handler)
    with made as session, _begun(session):
        yield session


@asynccontextmanager
async def _opened_async(made: Any, handler: Any) -> AsyncGenerator[Any]:
    if not hasattr(made, "__aenter__"):
        raise _no_context(made, handler)
    async with made as session, _begun(session):
        yield session


def _begun(session: Any) -> Any:
    """The transaction to be in, unless whoever made the session sees to that: it commits at the end of the block."""
    kind = kind_of(session)
    file = None if kind is None else kind.file
    if file in ("session", "sqlalchemy"):
        return nullcontext() if session.in_transaction() else session.begin()
    if file in ("psycopg", "asyncpg"):
        return session.transaction()
    if file in ("sqlite3", "pymysql"):
        return _committed(session)
    return _committed_async(session) if file in ("aiosqlite", "aiomysql") else nullcontext()


@contextmanager
def _committed(connection: Any) -> Generator[None]:
    """For drivers whose connections begin by themselves, and whose blocks may end without a commit."""
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@asynccontextmanager
async def _committed_async(connection: Any) -> AsyncGenerator[None]:
    try:
        yield
    except BaseException:
        await connection.rollback()
        raise
    await connection.commit()


def _no_context(made: Any, handler: Any) -> ConfigurationError:
    colour = "`async with`" if _is_async(handler) else "`with`"
    return ConfigurationError(
        f"session() gave {short(made)}, which cannot be used in {colour}, as {_called(handler)} needs it; give a "
        "sessionmaker, or for an async handler an async_sessionmaker"
    )


# --- checks


def _check(handler: Any, make_session: Any) -> None:
    if not callable(handler):
        raise ConfigurationError(f"{short(handler)} is no function that could handle messages")
    if not callable(make_session):
        raise ConfigurationError(f"session={short(make_session)} must be a function that makes one: a sessionmaker")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(f"{_called(handler)} is a generator: calling it would handle nothing")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(
            f"{_called(handler)} must take two arguments, the message and the session: {error}"
        ) from None


def _check_replies(replies: Outbox, strict: bool) -> None:
    check_outbox(replies)
    if strict:
        raise ConfigurationError(
            "replies=… and strict=True exclude each other: of a strict stream the inbox remembers how far it is, and "
            "no single message, so there is none to remember replies with"
        )


def _check_received(received: object) -> None:
    if not isinstance(received, Received):
        raise InvalidMessage(
            f"{short(received)} is no Received: make one with postroom.received(headers, payload), or with what "
            "postroom.consumers has for your broker"
        )


def _plain(result: Any, handler: Any) -> Any:
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(f"{_called(handler)} returned something to await: write `async def`")
    return result


def _is_async(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004 - of an object


def _called(handler: Any) -> str:
    return f"{getattr(handler, '__qualname__', short(handler))}()"
