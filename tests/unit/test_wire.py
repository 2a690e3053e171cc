"""What publishers share: answers in order, and envelopes."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from postroom import TOMBSTONE, Message, MessageRejected, Outbox, Relay
from postroom.errors import NotAttempted
from postroom.testing.batch import RecordingBatch
from postroom.wire.envelope import Envelope
from postroom.wire.lanes import Lanes


def test_what_is_behind_a_failure_is_not_tried_and_nobody_else_is_held_up() -> None:
    messages = [Message(topic="t", key=key) for key in ("a", "a", "b", None, "a")]
    batch = RecordingBatch(messages)
    lanes = Lanes(batch)
    lanes.answer(messages[1], MessageRejected("no"))
    assert list(lanes.open(messages[2:])) == messages[2:4]
    assert isinstance(batch.error_of(messages[4]), NotAttempted)


def test_one_that_was_refused_early_does_not_hide_what_fails_before_it() -> None:
    """An adapter may refuse what it cannot spell before it sends the rest."""
    first, second = (Message(topic="t", key="a") for _ in range(2))
    batch = RecordingBatch([first, second])
    lanes = Lanes(batch)
    lanes.answer(second, MessageRejected("cannot be spelled"))
    assert list(lanes.open([first])) == [first]
    lanes.answer(first, MessageRejected("too large"))
    assert str(batch.error_of(first)) == "too large"


@pytest.mark.parametrize(
    "payload",
    [b'{"price": 12345678901234567890.12345678901, "big": 1E400}', b'"half \\ud83d"', b" [1 , 2] ", b"null"],
)
def test_json_is_in_a_structured_event_as_it_is(payload: bytes) -> None:
    message = Message(topic="t", key="Zürich", payload=payload, content_type="application/json")
    wrapped = Envelope("structured").wrap(message).payload
    assert wrapped is not None
    assert b'"data": ' + payload in wrapped
    assert json.loads(wrapped)["partitionkey"] == "Zürich"


@pytest.mark.parametrize(
    ("payload", "kind"),
    [(b"{", "application/json"), (b"NaN", "application/json"), (b"\xff", "application/json"), (b"x", "text/plain")],
)
def test_anything_else_is_there_in_base64(payload: bytes, kind: str) -> None:
    wrapped = Envelope("structured").wrap(Message(topic="t", payload=payload, content_type=kind)).payload
    assert wrapped is not None
    assert base64.b64decode(json.loads(wrapped)["data_base64"]) == payload
    assert JSONFormat().read(CloudEvent, wrapped).get_data() == payload


def test_a_message_without_a_payload_has_no_data() -> None:
    wrapped = Envelope("structured").wrap(Message(topic="t")).payload
    assert wrapped is not None
    assert {"data", "data_base64"}.isdisjoint(json.loads(wrapped))


@pytest.mark.parametrize("format", ["postroom", "cloudevents"])
def test_a_tombstone_is_no_payload_from_the_outbox_to_the_wire(tmp_path: Path, format: str) -> None:
    sent: list[tuple[bytes | None, dict[str, str]]] = []

    def wrap(message: Message) -> None:
        wrapped = Envelope(format).wrap(message)
        sent.append((wrapped.payload, wrapped.headers))

    outbox = Outbox()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        for payload in (TOMBSTONE, b"", None):
            outbox.add(connection, "orders", payload, key="a")
    asyncio.run(Relay(f"sqlite:///{tmp_path / 'shop.db'}", wrap, outbox=outbox).drain())
    assert [payload for payload, _ in sent] == [None, b"", b"null"]
    assert ["postroom-nothing" in headers for _, headers in sent] == [True, False, False]
