"""FastStream: subscribers that handle each message once, in a transaction of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from faststream import BaseMiddleware
from faststream.message import StreamMessage

from ..checks import name_in
from ..inbox import Inbox
from ..wire.received import Received, received

Call = Callable[[StreamMessage[Any]], Awaitable[Any]]


class InboxMiddleware:
    """For a broker, or a single subscriber: `middlewares=[InboxMiddleware(inbox, consumer="billing", session=…)]`.

    Before a subscriber is called, `session()` is opened, a transaction begins, and the inbox is asked. The subscriber
    finds the session in FastStream's context, `session: AsyncSession = Context()`, unless `name` is another. If it
    returns, all is committed, and then FastStream acknowledges the message. If it raises, all is rolled back. For a
    duplicate nothing is called, and the message is acknowledged.

    With `strict`, for streams of an outbox with `order="strict"`, it is called if it is the message's turn.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        consumer: str,
        session: Callable[[], Any],
        name: str = "session",
        strict: bool = False,
    ) -> None:
        self.name = name
        self._inbox = inbox
        self._consumer = name_in("consumer", consumer)
        self._session = session
        self._strict = strict

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """What FastStream makes of it for each message."""
        return _Scope(self, msg, context)

    async def handle(self, message: StreamMessage[Any], call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call it with the session, if it is the first time."""

        async def handler(_: Received, session: Any) -> Any:
            return await call(session)

        once = self._inbox.once(consumer=self._consumer, session=self._session, strict=self._strict)
        body: Any = message.body
        return await once(handler)(received(message.headers, body, content_type=message.content_type))


class _Scope(BaseMiddleware[Any, Any]):
    def __init__(self, middleware: InboxMiddleware, msg: Any, context: Any) -> None:
        super().__init__(msg, context=context)
        self._middleware = middleware

    async def consume_scope(self, call_next: Call, msg: StreamMessage[Any]) -> Any:
        async def call(session: Any) -> Any:
            with self.context.scope(self._middleware.name, session):
                return await call_next(msg)

        return await self._middleware.handle(msg, call)
