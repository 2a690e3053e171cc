"""What SQS and SNS have in common: batches of ten, an answer for each entry, attributes, and a client of botocore."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]

from ..errors import DestinationUnavailable, MessageRejected, NotAttempted
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, Finding
from ..redact import redact
from . import tls
from .envelope import CONTENT_TYPE, Envelope
from .findings import finding
from .lanes import Lanes
from .options import positive, take, unusable
from .template import names_for, template

OPTIONS = {
    "endpoint": str,
    "account": str,
    "profile": str,
    "max_size": positive,
    "concurrency": positive,
    "format": str,
    "source": str,
    **tls.OPTIONS,
}

MOST_ENTRIES = 10
"""Of a request."""
MOST_ATTRIBUTES = 10
"""Of a message, as SQS has it, and SNS where it hands a message on as it is."""
HEADERS_ATTRIBUTE = "postroom-headers"
"""A JSON object of the headers that could not be attributes."""
BODY_ATTRIBUTE = "postroom-body"
"""`base64`, `empty` or `none`, if the body is not the payload itself: a body is text, and has at least a character."""

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
"""The relay is less patient."""
CONCURRENCY = 16
REMEDY = (
    "check the region, the credentials and their rights, and whether the {kind} is there; "
    "it is made with the console or your infrastructure code"
)

BLAME_THE_MESSAGE = frozenset({
    "BatchRequestTooLong", "InvalidMessageContents", "InvalidParameter", "InvalidParameterCombination",
    "InvalidParameterValue", "InvalidParameterValueException", "MessageTooLong", "MissingParameter",
    "ParameterValueInvalid", "UnsupportedOperation", "ValidationError", "ValidationException",
})  # fmt: skip
"""Everything else that AWS refuses with is about the queue, our rights, or how much it can take."""

_ATTRIBUTE = re.compile(r"(?!aws\.|amazon\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.IGNORECASE)
_UNSPEAKABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What a body or an attribute cannot contain."""
_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")


class Packed(NamedTuple):
    """A message as an entry of a request."""

    message: Message
    fields: dict[str, Any]
    size: int


class AwsPublisher(ABC):
    """What is left to the services: their names for things, and the two calls."""

    service: str
    place: str
    """What messages go to: a queue or a topic."""
    max_size: int

    def __init__(
        self,
        url: str,
        name: str,
        *,
        endpoint: str | None,
        account: str | None,
        profile: str | None,
        max_size: int | None,
        concurrency: int,
        format: str,
        source: str,
    ) -> None:
        place, given = take(url, {**OPTIONS, self.place: str})
        self.name = redact(place)
        self._concurrency = given.get("concurrency", concurrency)
        self._account = given.get("account", account)
        self._clients = Clients(
            self.service,
            place,
            given,
            endpoint=given.get("endpoint", endpoint),
            profile=given.get("profile", profile),
            connections=self._concurrency,
        )
        self._name = template(self.place, given.get(self.place, name))
        self._max_size = given.get("max_size", max_size or self.max_size)
        self._envelope = Envelope(given.get("format", format), given.get("source", source))
        # Each entry of a request is answered for by itself, so of a key only one may be in it.
        self.features = Features(ordered=False, max_size=self._max_size)
        self._room: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def publish(self, batch: Batch) -> None:
        lanes = Lanes(batch)
        async with asyncio.TaskGroup() as requests:
            for name, entries in self._pack(batch.messages, lanes).items():
                for request in chunks(entries, self._max_size):
                    requests.create_task(self._take_turn(name, request, lanes, batch.timeout / 2))

    async def close(self) -> None:
        await self._clients.close()

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        """Whether each place is there, and we may ask for it."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                client = await self._clients.get()
                for name in sorted(names_for(self._name_of, topics)):
                    await self._found(client, name)
        except Exception as error:
            return [finding("problem", f"{self.name}: {describe(error)}", REMEDY.format(kind=self.place))]
        return [finding("ok", f"{self.name} answers")]

    async def _found(self, client: Any, name: str) -> None:
        try:
            await self._look(client, name)
        except ClientError as error:
            raise DestinationUnavailable(f"{self.place} {name}: {_judged(error)}") from error

    # --- the service's own

    @abstractmethod
    async def _address(self, client: Any, name: str) -> str: ...

    @abstractmethod
    async def _look(self, client: Any, name: str) -> None:
        """Raises if the place is not there."""

    @abstractmethod
    async def _transmit(self, client: Any, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]: ...

    @abstractmethod
    def _entry(self, body: str, attributes: dict[str, Any]) -> dict[str, Any]: ...

    # --- packing

    def _name_of(self, message: Message) -> str:
        """Of the queue or topic: neither can have dots in its name, but for the end of a FIFO one's."""
        name = self._name(message)
        stem = name.removesuffix(".fifo")
        return f"{stem.replace('.', '-')}{name[len(stem) :]}"

    def _pack(self, messages: Sequence[Message], lanes: Lanes) -> dict[str, list[Packed]]:
        packed: dict[str, list[Packed]] = {}
        for number, message in enumerate(lanes.open(messages)):
            try:
                name = self._name_of(message)
                entry = self._packed(message, str(number), is_fifo=name.endswith(".fifo"))
            except MessageRejected as error:
                lanes.answer(message, error)
            else:
                packed.setdefault(name, []).append(entry)
        return packed

    def _packed(self, message: Message, id: str, *, is_fifo: bool) -> Packed:
        headers, payload, content_type = self._envelope.wrap(message)
        body, how = spelled(payload)
        ours = {} if how is None else {BODY_ATTRIBUTE: how}
        if content_type is not None:
            ours[CONTENT_TYPE] = content_type
        attributes = chosen(headers, ours)
        size = len(body.encode()) + sum(
            len(name.encode()) + len("String") + len(value.encode()) for name, value in attributes.items()
        )
        if size > self._max_size:
            raise MessageRejected(
                f"{size} bytes with its attributes are more than max_size={self._max_size}", permanent=True
            )
        entry = self._entry(
            body, {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
        )
        entry["Id"] = id
        if is_fifo:
            entry["MessageGroupId"] = group_of(message)
            entry["MessageDeduplicationId"] = message.dedupe_id
        return Packed(message, entry, size)

    # --- sending

    async def _take_turn(self, name: str, entries: Sequence[Packed], lanes: Lanes, patience: float) -> None:
        """Who waits for room for long is answered for, lest the relay take it for the silence of the service."""
        loop = asyncio.get_running_loop()
        if self._room is None or self._room[0] is not loop:
            self._room = (loop, asyncio.Semaphore(self._concurrency))
        room = self._room[1]
        try:
            async with asyncio.timeout(patience):
                await room.acquire()
        except TimeoutError:
            self._answer(entries, NotAttempted("other requests took all the room that concurrency leaves"), lanes)
            return
        try:
            await self._send(name, entries, lanes)
        finally:
            room.release()

    async def _send(self, name: str, entries: Sequence[Packed], lanes: Lanes) -> None:
        if not lanes.may_start([entry.message for entry in entries]):
            return
        try:
            client = await self._clients.get()
            address = await self._address(client, name)
            said = await self._transmit(client, address, [entry.fields for entry in entries])
        except ClientError as error:
            await self._refused(name, entries, _judged(error), lanes)
        except (BotoCoreError, OSError) as error:
            self._answer(entries, DestinationUnavailable(describe(error)), lanes)
        else:
            self._read(entries, said, lanes)

    async def _refused(self, name: str, entries: Sequence[Packed], error: Exception, lanes: Lanes) -> None:
        """The request as a whole: if one of them is to blame for it, each goes alone to see which."""
        if isinstance(error, MessageRejected) and len(entries) > 1:
            for entry in entries:
                await self._send(name, [entry], lanes)
        else:
            self._answer(entries, error, lanes)

    def _answer(self, entries: Sequence[Packed], error: Exception, lanes: Lanes) -> None:
        for entry in entries:
            lanes.answer(entry.message, error)

    def _read(self, entries: Sequence[Packed], said: Mapping[str, Any], lanes: Lanes) -> None:
        taken = {entry["Id"] for entry in said.get("Successful", ())}
        failed = {entry["Id"]: entry for entry in said.get("Failed", ())}
        for entry in entries:
            id = entry.fields["Id"]
            if id in taken:
                lanes.answer(entry.message)
            elif id in failed:
                code, words = failed[id].get("Code", ""), failed[id].get("Message", "")
                lanes.answer(entry.message, judged(code, words, bool(failed[id].get("SenderFault", True))))
            else:
                lanes.answer(entry.message, DestinationUnavailable(f"{self.name} did not say what became of it"))


def chunks(entries: Sequence[Packed], most_bytes: int) -> Iterator[Sequence[Packed]]:
    """In order, each with as much as one request may have."""
    chunk: list[Packed] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == MOST_ENTRIES or size + entry.size > most_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += entry.size
    if chunk:
        yield chunk


def spelled(payload: bytes | None) -> tuple[str, str | None]:
    """A payload as text, and how that is to be read, if not as it is."""
    if payload is None:
        return "-", "none"
    if not payload:
        return "-", "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _UNSPEAKABLE.search(text):
        return base64.b64encode(payload).decode(), "base64"
    return text, None


def chosen(headers: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a message. What cannot be one, and what is too much, is in `HEADERS_ATTRIBUTE`, in JSON."""
    given = {**headers, **ours}
    fit = {name: value for name, value in given.items() if _is_attribute(name, value)}
    if len(fit) < len(given) or len(fit) > MOST_ATTRIBUTES:
        by_rank = sorted(fit, key=lambda name: (name not in ours, not name.startswith("postroom-")))
        fit = {name: fit[name] for name in by_rank[: MOST_ATTRIBUTES - 1]}
        rest = {name: value for name, value in given.items() if name not in fit}
        fit[HEADERS_ATTRIBUTE] = json.dumps(rest)
    return fit


def _is_attribute(name: str, value: str) -> bool:
    return bool(_ATTRIBUTE.fullmatch(name) and len(name) <= 256 and value and not _UNSPEAKABLE.search(value))


def group_of(message: Message) -> str:
    """The key, or a hash of it where AWS would not take it; a message without one has a group of its own."""
    if message.key is None:
        return message.id
    return message.key if _GROUP.fullmatch(message.key) else hashlib.sha256(message.key.encode()).hexdigest()


def judged(code: str, words: str, is_ours: bool) -> Exception:
    text = f"{code}: {words}" if words else code
    if is_ours and code.rpartition("#")[2].rpartition(".")[2] in BLAME_THE_MESSAGE:
        return MessageRejected(redact(text))
    return DestinationUnavailable(redact(text))


def _judged(error: ClientError) -> Exception:
    said = cast("dict[str, Any]", error.response)
    details: dict[str, Any] = said.get("Error", {})
    status: int = said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return judged(str(details.get("Code", "")), str(details.get("Message", "")), 400 <= status < 500)


# --- clients


class Clients:
    """One, made when it is first needed, and made anew on another event loop."""

    def __init__(
        self,
        service: str,
        place: str,
        given: Mapping[str, Any],
        *,
        endpoint: str | None,
        profile: str | None,
        connections: int,
    ) -> None:
        parts = urlsplit(place)
        if not parts.hostname or parts.path.strip("/") or parts.fragment:
            remedy = f"write {service}://REGION, such as {service}://eu-central-1"
            raise unusable(place, f"is no address of {service.upper()}: {remedy}")
        tls.context(given)  # what cannot be used is told now
        self._service, self._profile = service, profile
        self._options: dict[str, Any] = {
            "region_name": parts.hostname,
            "endpoint_url": endpoint,
            "aws_access_key_id": None if parts.username is None else unquote(parts.username),
            "aws_secret_access_key": None if parts.password is None else unquote(parts.password),
            "verify": given.get("ssl_ca", True) if given.get("ssl_verify", True) else False,
        }
        certificate = given.get("ssl_cert")
        self._config: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT,
            "read_timeout": READ_TIMEOUT,
            "max_pool_connections": connections,
            "retries": {"total_max_attempts": 1},  # the relay tries again, and knows when
            "client_cert": (certificate, given["ssl_key"]) if "ssl_key" in given else certificate,
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._client: Any = None

    async def get(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._turn, self._client = loop, asyncio.Lock(), None
        async with self._turn:
            if self._client is None:
                session = AioSession(profile=self._profile)
                made: Any = session.create_client(self._service, config=AioConfig(**self._config), **self._options)  # pyright: ignore[reportUnknownMemberType]
                self._client = await made.__aenter__()
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.__aexit__(None, None, None)
