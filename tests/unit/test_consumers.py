"""Messages of clients, as a `Received`. What our publishers really send is read in tests/brokers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as OldCloudEvent
from nats.aio.msg import Msg
from paho.mqtt.client import MQTTMessage
from pika import BasicProperties
from pika.spec import Basic

from postroom import InvalidMessage
from postroom.consumers import cloudevents, http, kafka, mqtt, nats, rabbitmq, redis, sqs
from postroom.wire.http_headers import carried_headers

HEADERS = {"postroom-id": "1", "postroom-key": "ü", "tenant": "Müller & Söhne 100%"}


class Answering:
    """Like `confluent_kafka.Message`, whose facts are methods."""

    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, lambda value=value: value)


def pairs(headers: Mapping[str, str]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in headers.items()]


def record(**facts: Any) -> ConsumerRecord[Any, Any]:
    known: dict[str, Any] = dict.fromkeys(
        (
            "partition",
            "offset",
            "timestamp",
            "timestamp_type",
            "checksum",
            "serialized_key_size",
            "serialized_value_size",
        )
    )
    return ConsumerRecord(**known, **facts)


@pytest.mark.parametrize("make", [record, Answering])
def test_kafka(make: Any) -> None:
    found = kafka.received(make(topic="orders", key="ü".encode(), value=b"{}", headers=pairs(HEADERS)))
    assert (found.id, found.topic, found.key, found.payload) == ("1", "orders", "ü", b"{}")
    assert found.headers == {"tenant": "Müller & Söhne 100%"}
    bare = kafka.received(make(topic="orders", key=b"k", value=None, headers=pairs({"ce_id": "2"})))
    assert (bare.id, bare.key, bare.payload) == ("2", "k", None)
    assert kafka.received(make(topic="orders", key=None, value=None, headers=pairs({"ce_id": "2"}))).key is None


def test_pika() -> None:
    properties = BasicProperties(headers={**HEADERS, "count": 5}, content_type="text/plain")
    found = rabbitmq.received(Basic.Deliver(routing_key="orders"), properties, b"hello")
    assert (found.id, found.topic, found.payload, found.content_type) == ("1", "orders", b"hello", "text/plain")
    assert found.headers["count"] == "5"


@dataclass
class Incoming:
    """Like aio-pika's `IncomingMessage`."""

    body: bytes
    headers: dict[str, Any]
    routing_key: str | None
    content_type: str | None


def test_aio_pika() -> None:
    found = rabbitmq.received(Incoming(b"hello", dict(HEADERS), "orders", "text/plain"))
    assert (found.id, found.topic, found.payload, found.content_type) == ("1", "orders", b"hello", "text/plain")
    assert rabbitmq.received(Incoming(b"", dict(HEADERS), None, None)).topic == ""


def test_redis() -> None:
    fields = {name.encode(): value.encode() for name, value in HEADERS.items()} | {b"payload": b"\x00\xff"}
    found = redis.received(fields, stream=b"orders")
    assert (found.id, found.topic, found.payload) == ("1", "orders", b"\x00\xff")
    assert found.headers == {"tenant": "Müller & Söhne 100%"}
    text = redis.received({**HEADERS, "body": "ü", "content-type": "text/plain"}, payload="body")
    assert (text.payload, text.content_type, text.topic) == ("ü".encode(), "text/plain", "")
    assert redis.received({"ce-id": "2"}).payload is None


def test_nats() -> None:
    message = Msg(_client=None, subject="orders", data=b"{}", headers={**HEADERS, "Nats-Msg-Id": "1"})  # pyright: ignore[reportArgumentType]
    found = nats.received(message)
    assert (found.id, found.topic, found.payload) == ("1", "orders", b"{}")
    assert found.headers == {"tenant": "Müller & Söhne 100%"}


def test_sqs() -> None:
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in HEADERS.items()}
    found = sqs.received({"Body": "hello", "MessageAttributes": attributes}, topic="orders")
    assert (found.id, found.topic, found.payload) == ("1", "orders", b"hello")
    assert found.headers == {"tenant": "Müller & Söhne 100%"}
    rest = {"postroom-headers": {"StringValue": json.dumps(HEADERS)}, "postroom-body": {"StringValue": "base64"}}
    assert sqs.received({"Body": "AP8=", "MessageAttributes": rest}).payload == b"\x00\xff"
    assert sqs.received({"Body": "AP8=", "MessageAttributes": rest}).headers == found.headers


def test_sqs_of_sns_and_of_lambda() -> None:
    told = {name: {"Type": "String", "Value": value} for name, value in HEADERS.items()}
    notification = {"Type": "Notification", "TopicArn": "arn", "Message": "hello", "MessageAttributes": told}
    found = sqs.received({"Body": json.dumps(notification)})
    assert (found.id, found.payload) == ("1", b"hello")
    attributes = {name: {"dataType": "String", "stringValue": value} for name, value in HEADERS.items()}
    assert sqs.received({"body": "hello", "messageAttributes": attributes}) == found
    for body in ("no json", "[]", "{}"):
        with pytest.raises(InvalidMessage):
            sqs.received({"Body": body})


def test_mqtt_without_properties_is_nobodys_message() -> None:
    message = MQTTMessage(topic=b"orders")
    with pytest.raises(InvalidMessage):
        mqtt.received(message)


class Request:
    """Like a request of Starlette."""

    def __init__(self, headers: Mapping[str, str], body: bytes) -> None:
        self.headers = headers
        self._body = body

    async def body(self) -> bytes:
        return self._body


async def test_http() -> None:
    carried = carried_headers({**HEADERS, "traceparent": "a%20b", "content-type": "text/plain; x=%41"})
    assert carried["tenant"] != HEADERS["tenant"]
    found = await http.received(
        Request({name.title(): value for name, value in carried.items()}, b"hello"), topic="orders"
    )
    assert (found.id, found.key, found.topic, found.payload) == ("1", "ü", "orders", b"hello")
    assert found.headers == {"tenant": HEADERS["tenant"], "traceparent": "a%20b"}
    assert found.content_type == "text/plain; x=%41"
    raw = [(name.encode(), value.encode()) for name, value in carried.items()]
    assert http.received_from(raw, b"hello", topic="orders") == found


ATTRIBUTES: dict[str, Any] = {
    "id": "1",
    "source": "/shop",
    "type": "OrderPlaced",
    "partitionkey": "order-1",
    "sequence": "3",
    "postroomgeneration": "7",
    "postroomtopic": "orders",
}


@pytest.mark.parametrize("make", [CloudEvent, OldCloudEvent])
def test_cloudevents(make: Any) -> None:
    found = cloudevents.received(make(dict(ATTRIBUTES), {"total": "ü"}), headers={"tenant": "x"})
    assert (found.id, found.source, found.type, found.key) == ("1", "/shop", "OrderPlaced", "order-1")
    assert (found.sequence, found.generation, found.topic) == (3, 7, "orders")
    assert (found.payload, found.headers) == ('{"total": "ü"}'.encode(), {"tenant": "x"})
    assert found.created_at is not None
    assert cloudevents.received(make(dict(ATTRIBUTES), b"\x00")).payload == b"\x00"
    assert cloudevents.received(make(dict(ATTRIBUTES), "text")).payload == b"text"
    assert cloudevents.received(make(dict(ATTRIBUTES))).payload is None
    assert cloudevents.received(make({**ATTRIBUTES, "postroomtombstone": "1"})).is_tombstone
