"""The guard against sending past the outbox. No server is needed: a call that gets through fails in its own way."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aio_pika
import aiobotocore.session
import aiohttp
import aiokafka
import boto3
import confluent_kafka
import confluent_kafka.aio
import httpx
import paho.mqtt.client
import pytest
import redis
import redis.asyncio
import requests
import requests.adapters
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import OutboundBufferLimitError
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingChannel

from postroom import Message, Outbox, Relay
from postroom.stores.memory import MemoryStore
from postroom.testing import DirectPublish, Guard, forbid_direct_publish

HOOK = "https://hooks.example.com/orders"
NOWHERE = "127.0.0.1:9"
AWS: dict[str, Any] = {"region_name": "eu-central-1", "aws_access_key_id": "id", "aws_secret_access_key": "secret"}


@pytest.fixture
def guard() -> Iterator[Guard]:
    with forbid_direct_publish() as guard:
        yield guard


def bare(kind: Any) -> Any:
    """An object that was never connected to anything: the guard strikes before that matters."""
    return kind.__new__(kind)


def send_by_boto3() -> None:
    boto3.client("sqs", **AWS).send_message(QueueUrl="https://sqs.example.com/1/orders", MessageBody="{}")


async def send_by_aiobotocore() -> None:
    session: Any = aiobotocore.session.get_session()
    async with session.create_client("sns", **AWS) as client:
        await client.publish(TopicArn="arn:aws:sns:eu-central-1:1:orders", Message="{}")


async def post_by_aiohttp() -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(HOOK, json={})


async def post_by_httpx() -> None:
    async with httpx.AsyncClient() as client:
        await client.put(HOOK, json={})


SYNC: dict[str, Callable[[], object]] = {
    "confluent_kafka.Producer.produce": lambda: confluent_kafka.Producer({}).produce("orders", b"{}"),
    "confluent_kafka.SerializingProducer.produce": lambda: bare(confluent_kafka.SerializingProducer).produce("orders"),
    "pika.Channel.basic_publish": lambda: bare(BlockingChannel).basic_publish("", "orders", b"{}"),
    "redis.xadd": lambda: redis.Redis().xadd("orders", {"a": "b"}),
    "redis.publish": lambda: redis.Redis().publish("orders", "{}"),
    "paho.mqtt.Client.publish": lambda: paho.mqtt.client.Client(CallbackAPIVersion.VERSION2).publish("orders"),
    "sqs.SendMessage": send_by_boto3,
    f"requests POST {HOOK}": lambda: requests.post(f"{HOOK}?token=secret", json={}, timeout=1),
    f"httpx POST {HOOK}": lambda: httpx.post(f"{HOOK}?token=secret", json={}),
}

ASYNC: dict[str, Callable[[], Awaitable[object]]] = {
    "confluent_kafka.aio.AIOProducer.produce": lambda: bare(confluent_kafka.aio.AIOProducer).produce("orders", b"{}"),
    "aiokafka.AIOKafkaProducer.send": lambda: bare(aiokafka.AIOKafkaProducer).send_and_wait("orders", b"{}"),
    "aio_pika.Exchange.publish": lambda: bare(aio_pika.Exchange).publish(aio_pika.Message(b"{}"), "orders"),
    "redis.xadd": lambda: redis.asyncio.Redis().xadd("orders", {"a": "b"}),
    "nats.publish": lambda: Client().publish("orders", b"{}"),
    "nats.jetstream.publish": lambda: Client().jetstream().publish("orders", b"{}"),
    "sns.Publish": send_by_aiobotocore,
    f"aiohttp POST {HOOK}": post_by_aiohttp,
    f"httpx PUT {HOOK}": post_by_httpx,
}


@pytest.mark.parametrize("name", SYNC)
def test_a_call_past_the_outbox_is_refused_by_name(name: str, guard: Guard) -> None:
    with pytest.raises(DirectPublish) as refusal:
        SYNC[name]()
    assert str(refusal.value).startswith(f"{name} sends past the outbox")
    assert guard.calls == [name]
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("name", ASYNC)
async def test_an_async_call_past_the_outbox_is_refused_by_name(name: str, guard: Guard) -> None:
    with pytest.raises(DirectPublish, match=r"use outbox\.add"):
        await ASYNC[name]()
    assert guard.calls == [name]


def test_calls_can_be_allowed(guard: Guard) -> None:
    guard.allow("redis.*", "* https://hooks.example.com/*")
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=9).xadd("orders", {"a": "b"})
    assert guard.allows(f"httpx POST {HOOK}")
    with pytest.raises(DirectPublish):
        SYNC["paho.mqtt.Client.publish"]()
    assert guard.calls == ["paho.mqtt.Client.publish"]


@pytest.mark.parametrize("send", [httpx.post, lambda url: requests.post(url, timeout=1)])
def test_a_request_to_this_machine_is_the_tests_own(send: Callable[[str], object], guard: Guard) -> None:
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        send(f"http://{NOWHERE}/orders")
    assert guard.calls == []


def test_a_request_that_only_asks_is_let_through(guard: Guard) -> None:
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://shop.invalid/orders")
    assert guard.calls == []


def test_a_test_client_of_the_applications_own_is_let_through(guard: Guard) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(201))
    assert httpx.Client(transport=transport).post(HOOK).status_code == 201
    assert guard.calls == []


def test_afterwards_everything_is_as_before() -> None:
    producer, xadd, send = confluent_kafka.Producer, redis.Redis.xadd, requests.adapters.HTTPAdapter.send
    with forbid_direct_publish():
        assert confluent_kafka.Producer is not producer
        assert redis.Redis.xadd is not xadd
    assert confluent_kafka.Producer is producer
    assert (redis.Redis.xadd, requests.adapters.HTTPAdapter.send) == (xadd, send)


def test_a_producer_is_replaced_wherever_its_name_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = types.ModuleType("shop")
    shop.KafkaProducer = confluent_kafka.Producer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", shop)
    with forbid_direct_publish(), pytest.raises(DirectPublish):
        shop.KafkaProducer({}).produce("orders", b"{}")
    assert shop.KafkaProducer is confluent_kafka.Producer


def test_a_module_that_was_imported_during_a_test_is_guarded_in_the_next_and_free_between() -> None:
    with forbid_direct_publish():
        kept = confluent_kafka.Producer
    kept({}).produce("orders", b"{}")
    with forbid_direct_publish() as guard, pytest.raises(DirectPublish):
        kept({}).produce("orders", b"{}")
    assert guard.calls == ["confluent_kafka.Producer.produce"]


# --- what a relay sends is what should be sent


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_a_relay_calls_may_send(guard: Guard, is_async: bool) -> None:
    def send(message: Message) -> None:
        redis.Redis(port=9).xadd(message.topic, {"payload": message.payload})

    async def send_async(message: Message) -> None:
        await asyncio.to_thread(lambda: None)
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(), timeout=0.5) as client:
            await client.post("http://relay.invalid/")

    store = MemoryStore()
    with store.begin() as transaction:
        Outbox().add(transaction, "orders", {})
    report = await Relay(store, send_async if is_async else send).drain()
    assert (report.delivered, report.pending) == (0, 1), "it was let through, and nobody is there"
    assert guard.calls == []


@pytest.mark.parametrize(
    "url",
    [
        f"kafka://{NOWHERE}?message.timeout.ms=300",
        f"amqp://{NOWHERE}",
        f"redis://{NOWHERE}",
        f"nats://{NOWHERE}",
        "http://relay.invalid/hook",
    ],
)
async def test_the_relays_own_publishers_may_send(guard: Guard, url: str) -> None:
    store = MemoryStore()
    with store.begin() as transaction:
        Outbox().add(transaction, "orders", {})
    await Relay(store, url.partition("?")[0], publish_timeout="500ms").drain(timeout="2s")
    assert guard.calls == []


async def test_what_a_client_sends_for_itself_is_no_message(guard: Guard) -> None:
    """NATS acknowledges a message by publishing."""
    with pytest.raises(OutboundBufferLimitError):
        await Msg(_client=Client(), subject="orders", reply="reply", data=b"{}").ack()
    assert guard.calls == []
