"""Web hooks: the contracts, what a request looks like, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import secrets
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks import Webhook

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.publishers.http import HttpPublisher
from postroom.testing.publisher_contract import PublisherContract, Received, RejectionContract
from postroom.wire.http_client import is_public
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import Arrived, FaultSuite
from tests.brokers.http_hooks import SECRET, examined, is_outage, resolve, securely_to, send, to
from tests.brokers.http_server import Answer, HttpServer, Request, SecureServer
from tests.proxy import Proxy
from tests.services.places import CERTIFICATES

# hypercorn's own, of a connection that ends while it begins
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'TCPServer._idle_timeout' was never awaited:RuntimeWarning")


def received(request: Request) -> Received:
    headers = {name: unquote(value) for name, value in request.headers.items()}
    return Received(
        id=headers["postroom-id"],
        topic=unquote(request.target.rpartition("/")[2]),
        key=headers.get("postroom-key"),
        payload=request.body,
        headers=headers,
    )


class TestHttpPublisher(BehindProxy, PublisherContract, RejectionContract):
    patience = 100.0
    """A batch of 2,000 requests takes a while."""

    @pytest.fixture(autouse=True)
    def _network(self) -> Iterator[None]:
        with HttpServer() as server, Proxy(server.address) as proxy:
            self.server, self.proxy = server, proxy
            yield

    async def make_publisher(self) -> HttpPublisher:
        return HttpPublisher(f"{self.proxy.url}/hooks/{{topic}}#allow_private=true")

    async def received(self) -> list[Received]:
        return [received(request) for request in list(self.server.requests)]

    async def reject(self, ids: Collection[str]) -> None:
        self.server.react = lambda request: Answer(status=400 if request.headers["postroom-id"] in ids else 200)

    async def mend_destination(self) -> None:
        await super().mend_destination()
        self.server.react = lambda _: Answer()


class TestOverHttp2(BehindProxy, PublisherContract):
    patience = 100.0

    @pytest.fixture(autouse=True)
    def _network(self) -> Iterator[None]:
        with SecureServer() as server, Proxy(f"https://127.0.0.1:{server.port}") as proxy:
            self.server, self.proxy = server, proxy
            yield
        assert {request.version for request in server.requests} <= {"2"}

    async def make_publisher(self) -> HttpPublisher:
        return HttpPublisher(f"{self.proxy.url}/hooks/{{topic}}#allow_private=true&ssl_ca={CERTIFICATES / 'ca.pem'}")

    async def received(self) -> list[Received]:
        return [received(request) for request in list(self.server.requests)]


class TestFaults(FaultSuite):
    broker = "http"
    pause = 0.05

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        self.server = HttpServer()
        yield
        self.server.stop()

    def shared(self) -> str:
        return self.server.start()

    def private(self) -> HttpServer:
        return self.server

    def to(self, address: str) -> str:
        return f"{address}/hooks/{{topic}}#allow_private=true"

    def prepare(self, address: str) -> str:
        return f"orders-{secrets.token_hex(6)}"

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = [request for request in list(self.server.requests) if request.target == f"/hooks/{topic}"]
        return [(request.headers["postroom-key"], json.loads(request.body)["number"]) for request in found]


# --- what a request looks like


async def test_a_message_is_a_post_with_its_payload_and_headers(server: HttpServer) -> None:
    created = datetime(2030, 1, 1, tzinfo=UTC)
    message = Message(
        topic="orders", key="a", type="OrderPlaced", payload=b"{}", content_type="application/json", replays=1,
        headers={"Tenant": "shop 1"}, created_at=created,
    )  # fmt: skip
    assert await send(to(server, "/hooks?kind=test"), message) == [None]
    [request] = server.requests
    assert (request.method, request.target, request.body) == ("POST", "/hooks?kind=test", b"{}")
    expected = {
        "content-type": "application/json",
        "postroom-id": message.id,
        "postroom-key": "a",
        "postroom-type": "OrderPlaced",
        "postroom-replay": "1",
        "tenant": "shop 1",
        "idempotency-key": f"{message.id}+1",
    }
    assert request.headers.items() >= expected.items()
    assert "webhook-id" not in request.headers


async def test_a_message_without_a_payload_has_no_body_and_no_type(server: HttpServer) -> None:
    empty = Message(topic="orders", payload=b"", content_type="text/plain")
    assert await send(to(server, "#concurrency=1"), empty, Message(topic="orders")) == [None, None]
    first, second = server.requests
    assert (first.body, first.headers["content-type"], first.headers["content-length"]) == (b"", "text/plain", "0")
    assert (second.body, second.headers.get("content-type"), second.headers["content-length"]) == (b"", None, "0")


async def test_the_path_is_a_template_and_the_query_is_the_hooks_own(server: HttpServer) -> None:
    message = Message(topic="orders/eu", key="Kunde ä?#%", type="Order{Placed}", payload=b"1")
    assert await send(to(server, "/{topic}/x%20y/{key}/{type}?to={key}&a=%2F"), message) == [None]
    [request] = server.requests
    assert request.target == "/orders%2Feu/x%20y/Kunde%20%C3%A4%3F%23%25/Order%7BPlaced%7D?to={key}&a=%2F"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("plain-/:;,", "plain-/:;,"),
        ("", ""),
        ('Bearer abc, "d e"', 'Bearer abc, "d e"'),
        ("100%", "100%25"),
        ("Zürich 東", "Z%C3%BCrich%20%E6%9D%B1"),
        (" padded ", "%20padded%20"),
        ("two\r\nlines: x", "two%0D%0Alines:%20x"),
    ],
)
async def test_values_that_http_cannot_carry_are_percent_encoded(server: HttpServer, value: str, sent: str) -> None:
    assert await send(to(server), Message(topic="orders", payload=b"1", headers={"note": value})) == [None]
    assert (server.requests[0].headers["note"], unquote(sent)) == (sent, value)


async def test_trace_context_is_sent_as_it_is(server: HttpServer) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "shop=a%20b, other=c d"}
    await send(to(server), Message(topic="orders", payload=b"1", headers=trace))
    assert server.requests[0].headers.items() >= trace.items()


@pytest.mark.parametrize("format", ["cloudevents", "structured"])
async def test_the_sdk_for_cloudevents_reads_what_is_sent(server: HttpServer, format: str) -> None:
    key = 'Kunde "ä" 100%'
    message = Message(
        topic="orders", key=key, type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json",
        created_at=datetime(2030, 1, 1, tzinfo=UTC), headers={"tenant": "a"},
    )  # fmt: skip
    assert await send(to(server, f"#format={format}&source=/shop"), message) == [None]
    [request] = server.requests
    event = from_http_event(HTTPMessage(headers=dict(request.headers), body=request.body))
    assert (event.get_id(), event.get_source(), event.get_type()) == (message.id, "/shop", "OrderPlaced")
    assert (event.get_extension("partitionkey"), event.get_data()) == (key, {"id": 1})
    assert (event.get_time(), event.get_datacontenttype()) == (message.created_at, "application/json")
    assert request.headers["tenant"] == "a"


OLD_SECRET = f"whsec_{base64.b64encode(bytes([251, 239, 190] * 10)).decode()}"


assert OLD_SECRET.endswith("+")  # which a URL takes for a blank


@pytest.mark.parametrize(
    ("fragment", "options"),
    [
        (f"#secret={OLD_SECRET},{SECRET}", {}),
        (f"#secret={OLD_SECRET}%20{SECRET}", {}),
        (f"#secret={SECRET.removeprefix('whsec_')},{OLD_SECRET.removeprefix('whsec_')}", {}),
        ("", {"secrets": [OLD_SECRET, f"{SECRET}\n"]}),
    ],
)
async def test_a_request_is_signed_with_every_secret(
    server: HttpServer, fragment: str, options: dict[str, Any]
) -> None:
    publisher = to(server, fragment, **options)
    message = Message(topic="orders", payload='{"city": "Zürich"}'.encode(), replays=2)
    assert await send(publisher, message) == [None]
    [request] = server.requests
    assert request.headers["webhook-id"] == message.dedupe_id
    for secret in (OLD_SECRET, SECRET):
        assert Webhook(secret).verify(request.body, dict(request.headers)) == {"city": "Zürich"}
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET[:-4] + "AAAA").verify(request.body, dict(request.headers))


async def test_the_user_of_the_url_and_fixed_headers_are_sent(server: HttpServer) -> None:
    address = server.address.replace("//", "//shop:s3cr%40t@")
    publisher = HttpPublisher(address, allow_private=True, headers={"X-Tenant": "a"})
    await send(publisher, Message(topic="orders", payload=b"1", headers={"x-tenant": "b"}))
    [request] = server.requests
    assert request.headers["authorization"] == f"Basic {base64.b64encode(b'shop:s3cr@t').decode()}"
    assert request.headers["x-tenant"] == "a"
    assert "s3cr" not in publisher.name


async def test_connections_are_kept_and_cookies_are_not(server: HttpServer) -> None:
    server.react = lambda _: Answer(headers={"set-cookie": "a=b"}, body=b"thanks")
    messages = [Message(topic="orders", key="a", payload=b"%d" % number) for number in range(10)]
    assert await send(to(server), *messages) == [None] * 10
    assert server.connections == 1
    assert not [request for request in server.requests if "cookie" in request.headers]


async def test_a_client_of_ones_own_is_used_and_left_open(server: HttpServer) -> None:
    async with httpx.AsyncClient(headers={"authorization": "Bearer abc"}, follow_redirects=True) as client:
        publisher = HttpPublisher(f"{server.address}/{{topic}}", client=client)
        assert await send(publisher, Message(topic="orders", payload=b"1")) == [None]
        server.react = lambda _: Answer(status=302, headers={"location": "/elsewhere"})
        [answer] = await send(publisher, Message(topic="orders", payload=b"1"))
        assert isinstance(answer, DestinationUnavailable)
        [finding] = await publisher.examine(["orders"])
        assert finding.verdict == "warning"
        assert not client.is_closed
    assert [request.target for request in server.requests + server.refused] == ["/orders", "/orders"]
    assert server.requests[0].headers["authorization"] == "Bearer abc"


def test_a_publisher_may_be_used_on_one_event_loop_after_another(server: HttpServer) -> None:
    publisher = to(server)
    for _ in range(2):
        messages = [Message(topic="orders", payload=b"1") for _ in range(40)]
        assert asyncio.run(send(publisher, *messages)) == [None] * 40
    assert len(server.requests) == 80


# --- secrets


async def test_secrets_are_in_no_log_and_in_no_error(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.react = lambda request: Answer(status=400, body=repeated(request, "authorization", "x-token"))
    address = server.address.replace("//", "//shop:hush-1@")
    publisher = HttpPublisher(
        f"{address}/hooks?token=hush-2&page=2#allow_private=true&secret={SECRET}", headers={"x-token": "Bearer hush-3"}
    )
    [answer] = await send(publisher, Message(topic="orders", payload=b"1"))
    assert server.refused[0].target == "/hooks?token=hush-2&page=2"
    assert "page=2" in caplog.text
    basic = base64.b64encode(b"shop:hush-1").decode()
    for secret in ("hush", basic, SECRET):
        assert secret not in f"{answer} {answer!r} {caplog.text} {publisher.name}"


@pytest.mark.parametrize(
    "fragment", [f"secret={SECRET}", f"concurrency=2&secret={SECRET}", f"secret={SECRET} {SECRET}"]
)
def test_a_bad_url_does_not_tell_the_secret(fragment: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        HttpPublisher(f"https://hooks.example/#{fragment}&color=red")
    assert SECRET.removeprefix("whsec_") not in str(caught.value)


async def test_secrets_are_in_no_log_of_http_2_either(secure: SecureServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"https://shop:hush-1@localhost:{secure.port}/?token=hush-2#ssl_ca={CERTIFICATES / 'ca.pem'}"
    publisher = HttpPublisher(url, allow_private=True, headers={"x-token": "hush-3"})
    assert await send(publisher, Message(topic="orders", payload=b"1")) == [None]
    assert (secure.requests[0].target, secure.requests[0].headers["x-token"]) == ("/?token=hush-2", "hush-3")
    assert "hush" not in caplog.text
    assert base64.b64encode(b"shop:hush-1").decode() not in caplog.text


@pytest.mark.parametrize(("option", "options"), [("&name=alerts", {}), ("", {"name": "alerts"})])
async def test_a_name_stands_for_a_url_whose_path_is_secret(
    server: HttpServer, caplog: pytest.LogCaptureFixture, option: str, options: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO)
    publisher = to(server, f"/services/T0/hush-hush/{{key}}?v=hush-hush#{option}", **options)
    told = [publisher.name, (await examined(publisher)).seen]
    assert told == ["alerts", "alerts can be connected to"]
    for status in (400, 404, 302):
        server.react = lambda request, status=status: Answer(
            status=status, headers={"location": request.target}, body=f"Cannot POST {request.target}".encode()
        )
        told += map(str, await send(publisher, Message(topic="orders", key="a")))
    for key in (None, ".."):
        told += map(str, await send(publisher, Message(topic="orders", key=key)))
    assert [request.target for request in server.refused] == ["/services/T0/hush-hush/a?v=hush-hush"] * 3
    assert "Cannot POST" in told[2]
    assert "hush" not in f"{told} {caplog.text}"
    server.stop()
    [finding] = await publisher.examine([])
    assert (finding.verdict, finding.seen.startswith("alerts: ")) == ("problem", True)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/hush#name=alerts&color=red",
        "https://hooks.example/hush#name=alerts&concurrency=0",
        "https://hooks.example/hush/{shop}#name=alerts",
        "https://hooks.example/hush/../x#name=alerts",
        "ftp://hooks.example/hush#name=alerts",
    ],
)
def test_what_is_wrong_with_a_url_is_told_by_its_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="alerts") as caught:
        HttpPublisher(url)
    assert "hush" not in str(caught.value)


# --- addresses


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("64:ff9b::5db8:d822", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_what_a_public_address_is(address: str, public: bool) -> None:
    assert is_public(address) == public


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "hooks.example", "[::1]", "0x7f000001"])
async def test_private_addresses_are_refused_unless_they_are_allowed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if host == "hooks.example":
        resolve(monkeypatch, ["127.0.0.1"])
    address = server.address.replace("127.0.0.1", host)
    [answer] = await send(HttpPublisher(address), Message(topic="orders", payload=b"1"))
    assert isinstance(answer, DestinationUnavailable)
    assert "no public address: refused unless the URL has #allow_private=true" in str(answer)
    finding = await examined(HttpPublisher(address))
    assert (finding.verdict, "allow_private=true" in finding.seen) == ("problem", True)
    assert server.connections == 0


async def test_a_connection_goes_to_the_address_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quickly a name changes its address."""
    asked = resolve(monkeypatch, ["10.0.0.1", "93.184.216.34"], ["127.0.0.1"])
    tried: list[Any] = []

    async def create_connection(self: Any, factory: Any, host: Any, port: Any, **_: Any) -> Any:
        tried.append((host, port))
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", create_connection)
    [answer] = await send(HttpPublisher("https://hooks.example/x"), Message(topic="orders", payload=b"1"))
    assert is_outage(answer)
    assert (asked, tried) == (["hooks.example"], [("93.184.216.34", 443)])


async def test_of_several_addresses_the_first_that_answers_is_used(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    address = server.address.replace("127.0.0.1", "hooks.example")
    publisher = HttpPublisher(f"{address}#allow_private=true")
    assert await send(publisher, Message(topic="orders", payload=b"1")) == [None]


# --- refusals


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message(topic="orders", key="a", payload=b"1", headers={"naïve": "x"}), "cannot carry a header named 'naïve'"),
        (Message(topic="orders", key="a", payload=b"1", headers={"a b": "x"}), "cannot carry a header named 'a b'"),
        (Message(topic="orders", key="a", payload=b"1", headers={"": "x"}), "cannot carry a header named ''"),
        (Message(topic="orders", key="a", payload=b"1", headers={"Host": "x"}), "cannot carry a header named 'Host'"),
        (Message(topic="orders", key="a", payload=b"1", headers={"a": "x", "A": "y"}), "takes for one: 'A'"),
        (Message(topic="..", key="a", payload=b"1"), "which leads elsewhere"),
        (Message(topic="orders", key="a", payload=b"12345"), "it has 5 bytes, and max_size=4"),
    ],
)
async def test_what_cannot_be_sent_is_refused_for_good(server: HttpServer, message: Message, words: str) -> None:
    others = [Message(topic=message.topic, key="a", payload=b"2"), Message(topic="orders", key="b", payload=b"3")]
    answers = await send(to(server, "/{topic}#max_size=4"), message, *others)
    assert [type(answer) for answer in answers] == [MessageRejected, NotAttempted, type(None)]
    assert isinstance(answers[0], MessageRejected)
    assert answers[0].permanent
    assert words in str(answers[0])
    assert [request.body for request in server.requests] == [b"3"]


async def test_a_message_without_the_key_of_its_path_is_refused_for_good(server: HttpServer) -> None:
    [answer] = await send(to(server, "/{key}"), Message(topic="orders", payload=b"1"))
    assert isinstance(answer, MessageRejected)
    assert answer.permanent


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://hooks.example#color=red", "unknown option 'color'"),
        ("https://hooks.example#name=", "name of a hook must not be empty"),
        ("https://hooks.example#name=a%23b", "nor have # in it"),
        ("https://hooks.example#concurrency=0", "concurrency must be at least 1"),
        ("https://hooks.example#max_size=big", "max_size must be a whole number"),
        ("https://hooks.example#allow_private=perhaps", "allow_private must be 'true' or 'false'"),
        ("https://hooks.example#format=xml", "must be one of postroom, cloudevents, structured"),
        ("https://hooks.example#secret=whsec_%C3%A4", "a secret must be a key in base64"),
        ("https://hooks.example#secret=", "a secret must be a key in base64"),
        ("https://hooks.example/{shop}", "may name {topic}, {key} and {type}"),
        ("https://{topic}.hooks.example/x", "the host cannot be a template"),
        ("https://hooks.example/a/../{topic}", "its path has . or .. in it"),
        ("https://hooks.example:port/", "no address of a web hook"),
        ("https:///hooks", "http:// or https:// and a host"),
        ("https:hooks.example", "http:// or https:// and a host"),
        ("https://hooks.example#ssl_ca=/nowhere.pem", "/nowhere.pem cannot be used"),
        ("http://hooks.example#ssl_verify=false", "ssl_verify needs https:"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        HttpPublisher(url)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"secrets": ["not base64!"]}, "a secret must be a key in base64"),
        ({"headers": {"naïve": "x"}}, "cannot carry a header named 'naïve'"),
        ({"headers": {"Content-Length": "1"}}, "cannot carry a header named 'Content-Length'"),
        ({"headers": {"x": "Zürich"}}, "must be in visible ASCII"),
        ({"client": httpx.AsyncClient(), "allow_private": True}, "cannot be given together with a client"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        HttpPublisher("https://hooks.example", **options)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no.such.host.invalid", "https://{server}/x"])
async def test_a_server_that_cannot_be_used_is_told_and_found(server: HttpServer, url: str) -> None:
    publisher = HttpPublisher(f"{url.format(server=server.address[7:])}#allow_private=true")
    [answer] = await send(publisher, Message(topic="orders", payload=b"1"))
    assert is_outage(answer)
    assert (await examined(publisher)).verdict == "problem"


async def test_a_server_that_works_is_found_to_and_is_asked_nothing(server: HttpServer, secure: SecureServer) -> None:
    assert (await examined(to(server))).verdict == "ok"
    assert (await examined(securely_to(secure))).verdict == "ok"
    assert (server.requests, secure.requests) == ([], [])


def test_the_example_runs(tmp_path: Path) -> None:
    assert (
        run_example("http_webhook.py", tmp_path)
        == """\
order-1 OrderPlaced {'id': 1, 'total': 42}
delivered 1
"""
    )


def repeated(request: Request, *names: str) -> bytes:
    return json.dumps([request.headers[name] for name in names]).encode()
