"""A guard against sending past the outbox: while it is on, the known clients' send calls raise.

What the relay's own publishers send is let through, and so are functions that a relay calls to deliver. Clients are
patched where their calls are defined, so it does not matter who made the client, or when. The one exception is
confluent-kafka's `Producer`, which is written in C: its name is replaced in every module that has it, so a producer
that was made before the test is not seen.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import currentframe
from typing import Any, NoReturn
from unittest.mock import patch
from urllib.parse import urlsplit

Name = Callable[..., str | None]
"""Called like the guarded function: what the call is, or None if it is harmless."""

RELAY = ("postroom.publishers.", "postroom.relay.", "postroom.wire.")
AWS_CLIENTS = ("aiobotocore.", "botocore.")
CHANGING = frozenset({"POST", "PUT", "PATCH"})
AWS_SENDS = frozenset(
    {"SendMessage", "SendMessageBatch", "Publish", "PublishBatch", "PutEvents", "PutRecord", "PutRecords"}
)


class DirectPublish(AssertionError):
    """Something was about to be sent past the outbox: it could be sent although the transaction fails, or get lost
    although it commits."""


@dataclass(slots=True)
class Guard:
    """What was refused, in `calls`. A test that expects a refusal clears them."""

    calls: list[str] = field(default_factory=list[str])
    _allowed: list[str] = field(default_factory=list[str])

    def allow(self, *globs: str) -> None:
        """Let calls through that match, as they are named in the error: `"redis.*"`, `"* https://api.shop.test/*"`."""
        self._allowed.extend(globs)

    def allows(self, call: str) -> bool:
        return any(fnmatchcase(call, glob) for glob in self._allowed)

    def refuse(self, call: str) -> NoReturn:
        self.calls.append(call)
        raise DirectPublish(
            f"{call} sends past the outbox, apart from the transaction: use outbox.add(session, …) and let a relay "
            "deliver it; or, if this is no message, allow it with no_direct_publish.allow(…)"
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a client that sends."""

    module: str
    owner: str
    function: str
    name: Name
    callers: tuple[str, ...] = ()
    """Modules of the client itself that call it for a purpose of their own, or for somebody who was asked already."""
    carriers: tuple[str, ...] = ()
    """Modules of other clients that send by it, and are guarded themselves."""

    def is_refused_by(self, guard: Guard, name: str) -> bool:
        return not (
            guard.allows(name)
            or _is_called_within(self.callers, only_by=True)
            or _is_called_within((*RELAY, *self.carriers))
        )


@contextmanager
def forbid_direct_publish() -> Generator[Guard]:
    """Until the end of the block, what is sent past the outbox raises `DirectPublish`."""
    guard = Guard()
    with ExitStack() as stack:
        for call in CALLS:
            _guard_function(call, guard, stack)
        _guard_producer(stack)
        _guards.append(guard)
        stack.callback(_guards.remove, guard)
        yield guard


# --- calls, by client


def _named(name: str) -> Name:
    return lambda *_, **__: name


def _http(client: str, method: str, url: str) -> str | None:
    parts = urlsplit(url)
    if method.upper() not in CHANGING or _is_here(parts.hostname or ""):
        return None
    return f"{client} {method.upper()} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _is_here(host: str) -> bool:
    """Whether it is this machine: a test that talks to its own application."""
    return host in ("localhost", "testserver", "::1", "") or host.startswith("127.")


def _httpx(transport: Any, request: Any) -> str | None:
    return _http("httpx", request.method, str(request.url))


def _requests(adapter: Any, request: Any, *_: Any, **__: Any) -> str | None:
    return _http("requests", request.method, request.url)


def _aiohttp(session: Any, method: str, str_or_url: Any, **_: Any) -> str | None:
    return _http("aiohttp", method, str(session._build_url(str_or_url)))


def _aws(client: Any, operation_name: str, api_params: Any) -> str | None:
    name = f"{client.meta.service_model.service_name}.{operation_name}"
    return name if operation_name in AWS_SENDS else None


CALLS = (
    Call("confluent_kafka", "SerializingProducer", "produce", _named("confluent_kafka.SerializingProducer.produce")),
    Call("confluent_kafka.aio", "AIOProducer", "produce", _named("confluent_kafka.aio.AIOProducer.produce")),
    Call("aiokafka", "AIOKafkaProducer", "send", _named("aiokafka.AIOKafkaProducer.send")),
    Call("aiokafka", "AIOKafkaProducer", "send_batch", _named("aiokafka.AIOKafkaProducer.send_batch")),
    Call("pika.channel", "Channel", "basic_publish", _named("pika.Channel.basic_publish"), ("pika.",)),
    Call("pika.adapters.blocking_connection", "BlockingChannel", "basic_publish", _named("pika.Channel.basic_publish")),
    Call("aio_pika", "Exchange", "publish", _named("aio_pika.Exchange.publish")),
    Call("aiormq.channel", "Channel", "basic_publish", _named("aiormq.Channel.basic_publish"), ("aio_pika.",)),
    Call("redis.commands.core", "StreamCommands", "xadd", _named("redis.xadd")),
    Call("redis.commands.core", "PubSubCommands", "publish", _named("redis.publish")),
    Call("nats.aio.client", "Client", "publish", _named("nats.publish"), ("nats.",)),
    Call("nats.js.client", "JetStreamContext", "publish", _named("nats.jetstream.publish")),
    Call("nats.js.client", "JetStreamContext", "publish_async", _named("nats.jetstream.publish_async")),
    Call("paho.mqtt.client", "Client", "publish", _named("paho.mqtt.Client.publish")),
    Call("botocore.client", "BaseClient", "_make_api_call", _aws),
    Call("aiobotocore.client", "AioBaseClient", "_make_api_call", _aws),
    Call("httpx", "HTTPTransport", "handle_request", _httpx, carriers=AWS_CLIENTS),
    Call("httpx", "AsyncHTTPTransport", "handle_async_request", _httpx, carriers=AWS_CLIENTS),
    Call("requests.adapters", "HTTPAdapter", "send", _requests, carriers=AWS_CLIENTS),
    Call("aiohttp", "ClientSession", "_request", _aiohttp, carriers=AWS_CLIENTS),
)
PRODUCE = Call(
    "confluent_kafka.cimpl", "Producer", "produce", _named("confluent_kafka.Producer.produce"), ("confluent_kafka.",)
)


# --- how they are guarded


def _guard_function(call: Call, guard: Guard, stack: ExitStack) -> None:
    owner = getattr(_module(call.module), call.owner, None)
    original = getattr(owner, call.function, None)
    if original is None:
        return  # not installed, or of a version that has no such call

    @wraps(original)
    def guarded(*arguments: Any, **options: Any) -> Any:
        name = call.name(*arguments, **options)
        if name is not None and call.is_refused_by(guard, name):
            guard.refuse(name)
        return original(*arguments, **options)

    stack.enter_context(patch.object(owner, call.function, guarded))


_guards: list[Guard] = []
"""Those that are on, for the producer's stand-in, which a module may keep when it is imported during a test."""
_stand_ins: dict[type, type] = {}


def _guard_producer(stack: ExitStack) -> None:
    producer = getattr(_module(PRODUCE.module), PRODUCE.owner, None)
    if producer is None:
        return
    stand_in = _stand_ins.setdefault(producer, _stand_in_for(producer))
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if not name.startswith((*RELAY, "confluent_kafka.")):
            for attribute in [key for key, value in _attributes(module) if value is producer]:
                stack.enter_context(patch.object(module, attribute, stand_in))


def _attributes(module: object) -> list[tuple[str, object]]:
    return list(getattr(module, "__dict__", {}).items())


def _stand_in_for(producer: type) -> type:
    def produce(self: Any, *arguments: Any, **options: Any) -> Any:
        if _guards and PRODUCE.is_refused_by(_guards[-1], PRODUCE.name() or ""):
            _guards[-1].refuse(PRODUCE.name() or "")
        return producer.produce(self, *arguments, **options)  # type: ignore[attr-defined]

    return type(producer.__name__, (producer,), {"produce": produce, "__module__": producer.__module__})


def _is_called_within(modules: tuple[str, ...], *, only_by: bool = False) -> bool:
    """Whether one of them is calling the guarded function: at all, or at first hand."""
    frame = currentframe()
    for _ in range(3):  # past ourselves, `is_refused_by` and the guarded function
        frame = frame and frame.f_back
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(modules):
            return True
        frame = None if only_by else frame.f_back
    return False


def _module(name: str) -> Any:
    """The module, if its package is installed. Imported now, as an application may do so in the middle of a test."""
    if name in sys.modules:
        return sys.modules[name]
    if find_spec(name.partition(".")[0]) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(name)
        except Exception:
            return None
