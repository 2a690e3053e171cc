"""What a consumer makes of what arrived: our headers, and CloudEvents in both modes."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from postroom import TOMBSTONE, InvalidMessage, Message, Outbox, Received, received
from postroom.message import IDEMPOTENCY_HEADER, NOTHING_HEADER, TOMBSTONE_HEADER
from postroom.stores.memory import MemoryStore
from postroom.wire.envelope import Envelope

MOMENT = datetime(2026, 5, 1, 12, 30, 0, 123456, tzinfo=UTC)
MESSAGE = Message(
    topic="orders",
    payload=b'{"total": 1.10, "big": 123456789012345678901234567890}',
    key="order-1",
    type="OrderPlaced",
    headers={"tenant": "Müller", "traceparent": "00-1-2-01", IDEMPOTENCY_HEADER: "once"},
    content_type="application/json",
    sequence=3,
    generation=1_700_000_000_000,
    epoch=12,
    replays=2,
    created_at=MOMENT,
)
EXPECTED = Received(
    id=MESSAGE.id,
    topic="orders",
    payload=MESSAGE.payload,
    key="order-1",
    type="OrderPlaced",
    headers=MESSAGE.headers,
    content_type="application/json",
    sequence=3,
    generation=1_700_000_000_000,
    epoch=12,
    replays=2,
    created_at=MOMENT,
)
FORMATS = [
    pytest.param(Envelope("postroom"), id="postroom"),
    pytest.param(Envelope("cloudevents", source="/shop"), id="ce-"),
    pytest.param(Envelope("cloudevents", source="/shop", prefix="ce_"), id="ce_"),
    pytest.param(Envelope("structured", source="/shop"), id="structured"),
]


def arrived(envelope: Envelope, message: Message, **options: Any) -> Received:
    headers, payload, content_type = envelope.wrap(message)
    return received(headers, payload, content_type=content_type, **options)


@pytest.mark.parametrize("envelope", FORMATS)
def test_whatever_the_format_the_same_message_arrives(envelope: Envelope) -> None:
    found = arrived(envelope, MESSAGE, topic="a queue", key="another")
    assert found.source in (None, "/shop")
    assert replace(found, source=None) == EXPECTED


@pytest.mark.parametrize("envelope", FORMATS)
def test_a_bare_message_has_only_what_it_has(envelope: Envelope) -> None:
    found = arrived(envelope, Message(topic="orders", payload=b"\x00\xff", id=MESSAGE.id), topic="a queue")
    assert (found.id, found.topic, found.payload, found.key) == (MESSAGE.id, "a queue", b"\x00\xff", None)
    assert (found.headers, found.content_type, found.sequence, found.generation) == ({}, None, None, None)
    assert (found.epoch, found.replays, found.created_at, found.is_tombstone) == (0, 0, None, False)


@pytest.mark.parametrize("envelope", FORMATS)
def test_a_discarded_message_is_a_tombstone(envelope: Envelope) -> None:
    headers = {"tenant": "x", TOMBSTONE_HEADER: "1"}
    found = arrived(envelope, replace(MESSAGE, payload=b"", content_type=None, headers=headers))
    assert found.is_tombstone
    assert (found.sequence, found.headers) == (3, {"tenant": "x"})


@pytest.mark.parametrize("envelope", FORMATS)
def test_a_message_written_without_a_payload_has_none(envelope: Envelope) -> None:
    found = arrived(envelope, replace(MESSAGE, payload=b"", headers={NOTHING_HEADER: "1"}))
    assert found.payload is None
    assert not found.is_tombstone
    assert arrived(Envelope(), replace(MESSAGE, payload=b"", headers={})).payload == b""


def test_an_empty_body_is_no_payload_if_it_was_written_without_one() -> None:
    headers, _, _ = Envelope().wrap(replace(MESSAGE, payload=b"", headers={NOTHING_HEADER: "1"}))
    assert received(headers, b"").payload is None


@pytest.mark.parametrize(
    "payload", [b'{"a": 1.0}', b" [1,\n 2e5 ] ", b'"text"', b"null", b"1.50", '{"ü": "☃"}'.encode()]
)
def test_json_in_one_document_arrives_byte_for_byte(payload: bytes) -> None:
    found = arrived(Envelope("structured"), replace(MESSAGE, payload=payload))
    assert found.payload == payload.strip()
    assert found.content_type == "application/json"


@pytest.mark.parametrize("payload", [b"\x00\xff", b"", b"{not json", b"NaN"])
def test_other_bytes_in_one_document_arrive_byte_for_byte(payload: bytes) -> None:
    assert arrived(Envelope("structured"), replace(MESSAGE, payload=payload)).payload == payload


def test_a_document_of_somebody_else_is_read_wherever_its_members_stand() -> None:
    document = b"""
    {
        "data" : {"a": [1, {"}": "{"}]} ,
        "specversion" : "1.0", "id" : "A\\u002d1", "source" : "/other", "type" : "Paid",
        "sequence" : "not a number", "datacontenttype" : "application/json", "number" : 5
    }
    """
    found = received({"Content-Type": "application/cloudevents+json; charset=utf-8"}, document, topic="bills")
    assert (found.id, found.source, found.type, found.topic) == ("A-1", "/other", "Paid", "bills")
    assert found.payload == b'{"a": [1, {"}": "{"}]}'
    assert (found.sequence, found.content_type) == (None, "application/json")


def test_text_in_a_document_is_text_if_it_says_so() -> None:
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/",
        "type": "t",
        "datacontenttype": "text/plain",
        "data": "a\nb",
    }
    found = received({}, json.dumps(event).encode(), content_type="application/cloudevents+json")
    assert (found.payload, found.content_type) == (b"a\nb", "text/plain")


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{", b'{"id": 1', b'{"id": "1", "data_base64": "?"}', b"\xff", b'"x"']
)
def test_a_document_that_is_none_is_told(document: bytes) -> None:
    with pytest.raises(InvalidMessage):
        received({}, document, content_type="application/cloudevents+json")


def test_without_an_id_it_is_no_message() -> None:
    for headers in (None, {}, [], {"tenant": "x"}, {"postroom-id": ""}):
        with pytest.raises(InvalidMessage, match=r"neither a header postroom-id nor the id of a CloudEvent.*Received"):
            received(headers, b"")


def test_headers_may_be_pairs_of_bytes_in_any_case() -> None:
    pairs = [(b"Postroom-Id", b"1"), ("POSTROOM-KEY", "ü".encode()), ("Tenant", None), ("number", 5), ("x", b"\xff")]
    found = received(pairs, b"")
    assert (found.id, found.key) == ("1", "ü")
    assert found.headers == {"Tenant": "", "number": "5", "x": "\N{REPLACEMENT CHARACTER}"}


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "٣", "1e3"])
def test_what_is_no_number_is_none(value: str) -> None:
    found = received(
        {"postroom-id": "1", "postroom-sequence": value, "postroom-epoch": value, "postroom-created": value}
    )
    assert (found.sequence, found.epoch, found.created_at) == (None, 0, None)


def test_what_was_received_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        EXPECTED.id = "2"  # pyright: ignore[reportAttributeAccessIssue]


def test_no_payload_of_the_outbox_is_none_on_the_other_side() -> None:
    store = MemoryStore()
    with store.begin() as transaction:
        message = Outbox().add(transaction, "orders", TOMBSTONE)
    row = next(iter(store.tables.hot.rows.values())).message
    assert arrived(Envelope(), row).payload is None
    assert message.id == row.id
