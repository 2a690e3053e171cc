"""Kafka: what becomes of calls whose producer fails, is given up or cannot be made. No broker is needed for that."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from postroom import DestinationUnavailable, Message
from postroom.errors import NotAttempted
from postroom.publishers import kafka
from postroom.publishers.kafka import KafkaPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.wire import kafka_line
from postroom.wire.kafka_line import Flight, Line, Record
from tests.services.places import CERTIFICATES
from tests.waiting import until

NOWHERE = "kafka://127.0.0.1:1"


def messages(count: int) -> list[Message]:
    return [Message(topic="orders", key=f"key-{number}", payload=b"1") for number in range(count)]


class DeniedLine(Line):
    """As when we lack the right that an idempotent producer needs."""

    made = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        DeniedLine.made += 1

    def _produce(self, record: Record, flight: Flight) -> KafkaError:
        error = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "not for you", True)
        self.note(error)
        return error


async def test_a_fatal_error_that_is_not_a_messages_is_met_by_one_of_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DeniedLine, "made", 0)
    monkeypatch.setattr(kafka, "Line", DeniedLine)
    publisher = KafkaPublisher(NOWHERE)
    batch = await hand_over(publisher, RecordingBatch(messages(50)))
    await publisher.close()
    answers = [batch.answers[message.id] for message in batch.messages]
    assert isinstance(answers[0], DestinationUnavailable)
    assert "not for you" in str(answers[0])
    assert {type(answer) for answer in answers[1:]} == {NotAttempted}
    assert DeniedLine.made == 2
    assert not batch.violations


async def test_a_producer_that_cannot_be_made_blames_no_message(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    shutil.copy(CERTIFICATES / "ca.pem", authority)
    publisher = KafkaPublisher(f"{NOWHERE}?security.protocol=SSL&ssl.ca.location={authority}")
    authority.unlink()
    with pytest.raises(DestinationUnavailable, match=r"ssl\.ca\.location"):
        await publisher.publish(RecordingBatch(messages(1)))
    await publisher.close()


async def test_a_call_that_is_given_up_is_no_outage_to_another() -> None:
    publisher = KafkaPublisher(NOWHERE)
    given_up, other = RecordingBatch(messages(3)), RecordingBatch(messages(3))
    calls = [asyncio.create_task(publisher.publish(batch)) for batch in (given_up, other)]
    await until(lambda: publisher._lines and publisher._lines[False].under_way == 2)
    calls[0].cancel()
    await calls[1]
    assert {type(answer) for answer in other.answers.values()} == {NotAttempted}
    with suppress(asyncio.CancelledError):
        await calls[0]
    assert not any(isinstance(answer, NotAttempted) for answer in given_up.answers.values())
    await publisher.close()


async def test_a_client_that_does_not_report_what_it_gave_up_is_let_go_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_line, "purge", lambda _: None)
    monkeypatch.setattr(kafka_line, "FAREWELL", 0.05)
    publisher = KafkaPublisher(NOWHERE)
    call = asyncio.create_task(publisher.publish(RecordingBatch(messages(3))))
    await until(lambda: publisher._lines and publisher._lines[False].under_way)
    line = publisher._lines[False]
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    await until(lambda: line._producer is None)


def test_a_key_that_is_spread_over_topics_is_sent_one_by_one_unless_in_transactions() -> None:
    assert KafkaPublisher(NOWHERE, topic="{topic}-{key}").features.ordered
    assert not KafkaPublisher(NOWHERE, topic="{topic}-{type}").features.ordered
    assert not KafkaPublisher(f"{NOWHERE}?topic={{topic}}-{{type}}").features.ordered
    assert KafkaPublisher(NOWHERE, topic="{topic}-{type}", transactional="shop").features.ordered


def test_giving_up_does_not_wait_for_the_client() -> None:
    """Its flag is the wrong way round: this is how it does not wait, which nothing shows but a name that takes long to
    be looked up."""
    asked: list[dict[str, bool]] = []

    class Client:
        def purge(self, **options: bool) -> None:
            asked.append(options)

    kafka_line.purge(Client())  # pyright: ignore[reportArgumentType]
    assert asked == [{"in_queue": True, "in_flight": True, "blocking": True}]
