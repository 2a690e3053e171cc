"""What an application registers and schedules: `Tasks`, and each `Task`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from datetime import datetime
from functools import partial, update_wrapper
from importlib import import_module
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from ..duration import Duration, seconds
from ..errors import ConfigurationError
from ..message import LONGEST_NAME, TASKS_TOPIC, Message
from ..outbox import Outbox
from ..ports import Publisher
from ..retry import RetryPolicy
from ..retry import parse as parse_policy
from ..serialize import JsonSerializer, encode
from .context import TaskContext
from .decisions import Block, Decision
from .processes import Place
from .runner import Runner
from .shape import Read, reader_for

P = ParamSpec("P")
R = TypeVar("R")

OnFailure = Callable[[Any, TaskContext, BaseException], Any]
"""Of a payload, the context and what was raised: a decision, or None to leave it to the retry policy. Sync or async."""
Where = Executor | Literal["process"] | None
Handler = Callable[[Message, TaskContext, BaseException], Any]
"""The same for a message that no function can be called with."""


class Task(Generic[P, R]):
    """A function that can be scheduled. Calling it just calls the function."""

    def __init__(
        self,
        tasks: Tasks,
        id: str,
        function: Callable[P, R],
        *,
        retry: RetryPolicy | None,
        timeout: float | None,
        on_failure: OnFailure | None,
        executor: Where,
    ) -> None:
        self.id = id
        self.function = function
        self.retry = retry
        self.timeout = timeout
        self.on_failure = on_failure
        self.takes_context, self.read = _signature(function, id)
        self.executor, self.place = _where(executor, function, id)
        self._tasks = tasks
        update_wrapper(cast(Any, self), function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.id!r}>"

    def message(
        self,
        payload: Any = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        at: datetime | None = None,
        delay: Duration | None = None,
        expires_at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """The message that `schedule` would write, for `outbox.add_many`."""
        data, content_type = encode(payload, self._tasks.serializer)
        return Message(
            topic=TASKS_TOPIC,
            payload=data,
            content_type=content_type,
            type=self.id,
            key=key,
            idempotency_key=idempotency_key,
            deliver_at=at,
            delay=delay,
            expires_at=expires_at,
            headers=headers or {},
        )

    def schedule(self, connection: Any, payload: Any = None, **options: Any) -> Message:
        """Have it run once the transaction of `connection` is committed, and never if that is rolled back.

        Options: `key` (tasks of one key run one after the other, in order, whatever their kind), `idempotency_key`,
        `at` or `delay`, `expires_at`, `headers`. Takes what `Outbox.add` takes, and raises what that raises.
        """
        return self._tasks.outbox.add(connection, self.message(payload, **options))

    async def schedule_async(self, connection: Any, payload: Any = None, **options: Any) -> Message:
        """`schedule` for async connections."""
        return await self._tasks.outbox.add_async(connection, self.message(payload, **options))


class Tasks:
    """The tasks of an application. They are written by its outbox, and run by relays that are given this object.

    `unknown_after`: how long a task that a relay does not know waits for a relay that does, before the handler for
    unknown ones decides. `max_crashes`: a task that was under way in so many processes that died is not run any more.
    `executor`: where they run, unless they say so themselves: None, sync functions in threads of the relay's own and
    async ones on its loop; an `Executor` of yours, for the sync ones; or "process", all of them in processes of their
    own, which can be ended when the time is over, and may die alone.
    """

    def __init__(
        self,
        outbox: Outbox | None = None,
        *,
        unknown_after: Duration = "5m",
        max_crashes: int = 3,
        executor: Where = None,
    ) -> None:
        if max_crashes < 1:
            raise ConfigurationError(f"max_crashes must be at least 1, not {max_crashes}")
        self.outbox = outbox or Outbox()
        self.topic = TASKS_TOPIC
        self.unknown_after = seconds(unknown_after, name="unknown_after")
        self.max_crashes = max_crashes
        self.executor: Where = executor
        given = self.outbox.serializer
        self.serializer = given if isinstance(given, JsonSerializer) else JsonSerializer()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._unknown: Handler = _block
        self._unreadable: Handler = _block

    def __getitem__(self, id: str) -> Task[..., Any]:
        return self._tasks[id]

    def __contains__(self, id: object) -> bool:
        return id in self._tasks

    def __repr__(self) -> str:
        return f"Tasks({', '.join(sorted(self._tasks))})"

    @property
    def ids(self) -> list[str]:
        return sorted(self._tasks)

    def task(
        self,
        id: str,
        *,
        retry: RetryPolicy | str | None = None,
        timeout: Duration | None = None,
        on_failure: OnFailure | None = None,
        executor: Where = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Register a function `(payload)` or `(payload, context)`, sync or async.

        `id` is what is stored: it must not change while there are scheduled ones. `retry`: a policy of its own; else
        the relay's. `timeout`: an async function is cancelled, and waited for, after this time; a sync one cannot be
        stopped, and keeps its key until it returns, unless `executor` is "process". `on_failure(payload, context,
        error)` decides after a failure: `Retry`, `Block`, `Ignore`, or None for the policy.
        """

        def register(function: Callable[P, R]) -> Task[P, R]:
            if not isinstance(cast(object, id), str) or not 0 < len(id) <= LONGEST_NAME:
                raise ConfigurationError(f"the id of a task is a text of 1 to {LONGEST_NAME} characters, not {id!r}")
            if id in self._tasks:
                raise ConfigurationError(
                    f"there is a task {id!r} already, {_place(self._tasks[id].function)}; give {_place(function)} "
                    "another id"
                )
            policy = parse_policy(retry, name="retry") if retry is not None else None
            limit = None if timeout is None else seconds(timeout, name="timeout")
            if limit is not None and limit <= 0:
                raise ConfigurationError(f"timeout={timeout!r} must be longer than nothing")
            made = Task(
                self,
                id,
                function,
                retry=policy,
                timeout=limit,
                on_failure=on_failure,
                executor=self.executor if executor is None else executor,
            )
            self._tasks[id] = made
            return made

        return register

    def unknown(self, handler: Handler) -> Handler:
        """Decorator: what decides about a message whose task is not registered here; unless given, `Block`."""
        self._unknown = handler
        return handler

    def unreadable(self, handler: Handler) -> Handler:
        """Decorator: what decides about a payload that does not validate; unless given, `Block`."""
        self._unreadable = handler
        return handler

    def discover(self, *modules: str) -> Tasks:
        """Import these modules, which register their tasks here."""
        for name in modules:
            try:
                import_module(name)
            except ImportError as error:
                raise ConfigurationError(f"the module {name!r} with tasks cannot be imported: {error}") from error
        return self

    def publisher(self, *, concurrency: int) -> Publisher:
        """What runs them, for a relay."""
        return Runner(
            self._tasks.get,
            unknown=self._unknown,
            unreadable=self._unreadable,
            unknown_after=self.unknown_after,
            concurrency=concurrency,
            max_crashes=self.max_crashes,
        )


def _block(message: Message, context: TaskContext, error: BaseException) -> Decision:
    return Block()


def _where(executor: Where, function: Any, id: str) -> tuple[Executor | None, Place | None]:
    if executor == "process":
        return None, Place.of(function, id)
    if isinstance(cast(object, executor), ProcessPoolExecutor):
        raise ConfigurationError(f"task {id!r}: a ProcessPoolExecutor cannot end a task: use executor='process'")
    if executor is None or isinstance(cast(object, executor), Executor):
        return executor, None
    raise ConfigurationError(f"task {id!r}: executor={executor!r} is neither an Executor nor 'process'")


def _signature(function: Callable[..., Any], id: str) -> tuple[bool, Read]:
    """Whether it takes a context, and how its payload is read."""
    if not callable(cast(object, function)):
        raise ConfigurationError(f"task {id!r}: {function!r} is no function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"task {id!r}: {_place(function)} is a generator: calling it would run nothing")
    if isinstance(function, type):
        raise ConfigurationError(f"task {id!r}: {_place(function)} is a class; give a function")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ConfigurationError(f"task {id!r}: {_place(function)} does not tell what it takes; wrap it") from None
    parameters = list(signature.parameters.values())
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in parameters if each not in positional[:2] and each.default is each.empty]
    needed = [each for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if not positional or needed:
        raise ConfigurationError(
            f"task {id!r}: {_place(function)}{signature} must take (payload) or (payload, context)"
        )
    takes_context = len(positional) > 1 and (
        positional[1].default is inspect.Parameter.empty or positional[1].name == "context"
    )
    annotation = _hints(function, id).get(positional[0].name, Any)
    return takes_context, reader_for(annotation, id)


def _hints(function: Callable[..., Any], id: str) -> dict[str, Any]:
    source: Any = function
    while isinstance(source, partial):
        source = cast("partial[Any]", source).func
    if not inspect.isroutine(source):
        source = type(source).__call__
    try:
        return typing.get_type_hints(source, include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"task {id!r}: the annotations of {_place(function)} cannot be resolved ({error}); types must be defined "
            "at the top of a module"
        ) from error


def _place(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
