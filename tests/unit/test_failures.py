"""Who is to blame: the destination or the message."""

from __future__ import annotations

import asyncio
import errno
import http.client
import smtplib
import socket
import ssl
import urllib.error
from email.message import Message as Email
from types import SimpleNamespace

import pytest

from postroom.errors import DestinationUnavailable, MessageRejected, NotAttempted
from postroom.failures import LONGEST_DESCRIPTION, REFUSED, UNAVAILABLE, describe, is_unavailable

# Where the clients really define them; the table itself names only the package.
MODULES = {
    "aiohttp": "aiohttp.client_exceptions",
    "aiokafka": "aiokafka.errors",
    "botocore": "botocore.exceptions",
    "nats": "nats.errors",
    "pika": "pika.exceptions",
    "pymongo": "pymongo.errors",
    "redis": "redis.exceptions",
    "requests": "requests.exceptions",
    "urllib3": "urllib3.exceptions",
}


def made_up(module: str, name: str, *bases: type[BaseException], **attributes: object) -> BaseException:
    """An instance of a class that looks like a client's own."""
    kind = type(name, bases or (Exception,), {"__module__": module})
    error = kind("made up")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("https://shop.example", code, "no", Email(), None)


@pytest.mark.parametrize(
    "error",
    [
        DestinationUnavailable("down"),
        ConnectionError(),
        ConnectionRefusedError(),
        BrokenPipeError(),
        TimeoutError(),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLError("handshake failure"),
        asyncio.IncompleteReadError(b"", 10),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed"),
        smtplib.SMTPServerDisconnected("Connection unexpectedly closed"),
        smtplib.SMTPConnectError(421, b"busy"),
        smtplib.SMTPDataError(421, b"closing"),
        smtplib.SMTPAuthenticationError(535, b"no"),
        http.client.RemoteDisconnected("closed"),
        http.client.IncompleteRead(b""),
        urllib.error.URLError("unreachable"),
    ],
    ids=repr,
)
def test_what_the_standard_library_raises_in_an_outage_is_one(error: BaseException) -> None:
    assert is_unavailable(error)


@pytest.mark.parametrize(
    "error",
    [
        MessageRejected("bad"),
        NotAttempted("later"),
        ValueError("bad"),
        KeyError("bad"),
        FileNotFoundError(2, "No such file"),
        PermissionError(13, "Permission denied"),
        OSError("something else"),
        OSError(errno.ENOSPC, "No space left on device"),
        smtplib.SMTPRecipientsRefused({}),
        smtplib.SMTPDataError(550, b"spam"),
        SystemExit(1),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
    ],
    ids=repr,
)
def test_anything_else_is_the_message(error: BaseException) -> None:
    assert not is_unavailable(error)


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in UNAVAILABLE for name in sorted(UNAVAILABLE[package])]
)
def test_known_clients_are_recognised_by_name(package: str, name: str) -> None:
    module = MODULES.get(package, package)
    assert is_unavailable(made_up(module, name))
    assert is_unavailable(made_up("shop.errors", "Mine", type(made_up(module, name))))
    assert not is_unavailable(made_up("shop.errors", name))


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in REFUSED for name in sorted(REFUSED[package])]
)
def test_some_of_their_subclasses_blame_the_message(package: str, name: str) -> None:
    parent = type(made_up(package, min(UNAVAILABLE[package])))
    assert not is_unavailable(made_up(package, name, parent))


@pytest.mark.parametrize(
    ("status", "outage"), [(503, True), (502, True), (429, True), (401, True), (404, False), (422, False), (500, False)]
)
def test_an_http_answer_is_judged_by_its_status(status: int, outage: bool) -> None:
    assert is_unavailable(http_error(status)) is outage
    response = SimpleNamespace(status_code=status)
    assert is_unavailable(made_up("httpx", "HTTPStatusError", response=response)) is outage
    assert is_unavailable(made_up("requests.exceptions", "HTTPError", OSError, response=response)) is outage
    assert is_unavailable(made_up("aiohttp.client_exceptions", "ClientResponseError", status=status)) is outage
    assert is_unavailable(made_up("google.api_core.exceptions", "GoogleAPICallError", code=status)) is outage


@pytest.mark.parametrize(
    ("code", "outage"), [("UNAVAILABLE", True), ("DEADLINE_EXCEEDED", True), ("INVALID_ARGUMENT", False)]
)
def test_a_grpc_answer_is_judged_by_its_code(code: str, outage: bool) -> None:
    error = made_up("grpc", "RpcError", code=lambda: SimpleNamespace(name=code))
    assert is_unavailable(error) is outage


def test_an_answer_that_cannot_be_read_is_no_outage() -> None:
    assert not is_unavailable(made_up("httpx", "HTTPStatusError"))
    assert not is_unavailable(made_up("grpc", "RpcError", code=lambda: 1 / 0))


def test_extra_classes_count_as_outages() -> None:
    assert is_unavailable(KeyError("x"), (LookupError,))
    assert not is_unavailable(KeyError("x"), (ValueError,))


def test_a_refusal_stays_one_even_if_it_is_a_connection_error() -> None:
    class Refusal(MessageRejected, ConnectionError):
        pass

    assert not is_unavailable(Refusal("bad"))


def test_a_group_is_an_outage_if_all_of_it_is() -> None:
    outage = ExceptionGroup("all", [ConnectionError(), ExceptionGroup("inner", [TimeoutError()])])
    assert is_unavailable(outage)
    assert not is_unavailable(ExceptionGroup("mixed", [outage, ValueError()]))
    assert is_unavailable(ExceptionGroup("mine", [KeyError()]), (KeyError,))


def test_a_cause_is_not_looked_at() -> None:
    error = ValueError("bad address")
    error.__cause__ = ConnectionError()
    assert not is_unavailable(error)


def test_a_host_with_several_dead_addresses_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two_addresses(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 1)) for n in (1, 2)]

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
        await loop.create_connection(asyncio.Protocol, "shop.example", 1)

    with pytest.raises(OSError, match="Multiple exceptions") as caught:
        asyncio.run(connect())
    assert is_unavailable(caught.value)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad price"), "ValueError: bad price"),
        (ValueError(), "ValueError"),
        (KeyError("id"), "KeyError: 'id'"),
        (ValueError("one\n  two\ttabbed\x00zero"), "ValueError: one two tabbed zero"),
        (ValueError("half \ud83d"), "ValueError: half ?"),
        (ConnectionError("amqp://shop:rabbit@broker/x refused"), "ConnectionError: amqp://shop:***@broker/x refused"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup: two (ValueError: a; KeyError: 'b')"),
    ],
)
def test_an_error_is_described_in_one_line(error: BaseException, text: str) -> None:
    assert describe(error) == text


def test_a_long_description_is_cut_after_its_secrets_were_hidden() -> None:
    text = describe(ValueError("x" * 470 + " https://user:" + "s3cret" * 20 + "@host/ " + "y" * 100_000))
    assert len(text) == LONGEST_DESCRIPTION
    assert text.endswith("…")
    assert "s3cret" not in text


def test_an_error_without_words_is_described_too() -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Speechless()).startswith("Speechless: ")
