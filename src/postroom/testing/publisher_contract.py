"""What every publisher must do: `ports.Publisher`, sentence by sentence, as far as its `Features` promise it. Run it on
yours:

    class TestMyPublisher(PublisherContract, RejectionContract):
        async def make_publisher(self):
            return MyPublisher(url)

        async def received(self): ...

        async def break_destination(self): ...

        async def hang_destination(self): ...

        async def mend_destination(self): ...

        async def reject(self, ids): ...

`RejectionContract` is for destinations that can refuse a single message; others leave it out, and `reject` with it.
pytest and pytest-asyncio are needed.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from ..errors import NoAnswer, NotAttempted
from ..failures import is_unavailable
from ..message import Message
from ..ports import Publisher
from .batch import RecordingBatch, hand_over
from .suite import Suite

PAYLOADS = {
    "empty": b"",
    "json": b'{"id": 1, "price": 12.50, "name": "Z\xc3\xbcrich"}',
    "lines": b"one\ntwo\r\nthree\n",
    "binary": bytes(range(256)),
    "large": b"0123456789" * 10_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as it arrived."""

    id: str
    topic: str
    key: str | None
    payload: bytes
    headers: Mapping[str, str]


def _lane(message: Message | Received) -> Hashable:
    return message.id if message.key is None else (message.topic, message.key)


def _by_lane(messages: Iterable[Message | Received]) -> dict[Hashable, list[str]]:
    """The ids of each lane, each once, in the order of their first arrival."""
    lanes: dict[Hashable, dict[str, None]] = defaultdict(dict)
    for message in messages:
        lanes[_lane(message)][message.id] = None
    return {lane: list(ids) for lane, ids in lanes.items()}


def _ids(messages: Iterable[Message | Received]) -> set[str]:
    return {message.id for message in messages}


class _PublisherTest(Suite):
    """The hooks, and how the suite hands messages over and looks at what arrived."""

    pytestmark = pytest.mark.asyncio

    topic = "orders"
    unicode_headers = True
    """False if the destination's headers are ASCII."""
    many = 2_000
    """Messages of a large batch; fewer where a destination is slow."""
    patience = 10.0
    """Seconds to wait for what should happen."""
    grace = 0.1
    """Seconds to wait for what should not."""

    @abstractmethod
    async def make_publisher(self) -> Publisher:
        """A new publisher to the destination."""

    @abstractmethod
    async def received(self) -> Sequence[Received]:
        """What has arrived so far, oldest first."""

    @pytest.fixture(autouse=True)
    def batches(self) -> Iterator[list[RecordingBatch]]:
        """Every batch of the test: at its end none of them may have been answered wrongly, not even late."""
        self._batches: list[RecordingBatch] = []
        yield self._batches
        assert not [violation for batch in self._batches for violation in batch.violations]

    @pytest_asyncio.fixture
    async def publisher(self, batches: list[RecordingBatch]) -> AsyncIterator[Publisher]:
        publisher = await self.make_publisher()
        yield publisher
        await publisher.close()

    def messages(self, number: int, keys: Sequence[str | None] = ("a",), **fields: Any) -> list[Message]:
        """That many messages, over the keys in turn."""
        return [
            replace(
                Message(
                    topic=self.topic, key=keys[index % len(keys)], payload=b"%d" % index, position=index + 1, epoch=1
                ),
                **{"content_type": "application/json", **fields},
            )
            for index in range(number)
        ]

    def batch(
        self, publisher: Publisher, messages: Iterable[Message], timeout: float = 5.0, *, starts: int | None = None
    ) -> RecordingBatch:
        """A batch of as many of the messages as the publisher's features allow."""
        batch = RecordingBatch(self._sendable(publisher, messages), timeout, starts=starts)
        self._batches.append(batch)
        return batch

    async def hand_over(
        self, publisher: Publisher, messages: Iterable[Message], timeout: float = 5.0, *, starts: int | None = None
    ) -> RecordingBatch:
        """One call of `publish`."""
        batch = await hand_over(publisher, self.batch(publisher, messages, timeout, starts=starts))
        assert not batch.violations
        assert not [error for error in batch.answers.values() if isinstance(error, NoAnswer)]
        return batch

    async def deliver(self, publisher: Publisher, messages: Sequence[Message]) -> None:
        """Call after call, until all of them are delivered; what fails is tried again, as a relay would."""
        rest, end = list(messages), time.monotonic() + self.patience
        while rest:
            batch = await self.hand_over(publisher, rest)
            assert time.monotonic() < end, f"not delivered: {[batch.answers.get(message.id) for message in rest]}"
            delivered = _ids(batch.delivered)
            rest = [message for message in rest if message.id not in delivered]
            await asyncio.sleep(0 if delivered else 0.01)

    async def arrived(self, ids: Collection[str]) -> Sequence[Received]:
        """Everything that has arrived, once these have."""
        end = time.monotonic() + self.patience
        while not _ids(received := await self.received()).issuperset(ids):
            assert time.monotonic() < end, f"did not arrive: {set(ids) - _ids(received)}"
            await asyncio.sleep(0.01)
        return received

    async def assert_arrived(self, messages: Sequence[Message]) -> None:
        """All of them, and each key in order."""
        ids = _ids(messages)
        received = [each for each in await self.arrived(ids) if each.id in ids]
        assert _by_lane(received) == _by_lane(messages)

    async def assert_only_arrived(self, messages: Sequence[Message]) -> None:
        """All of them, each key in order, and nothing else."""
        await asyncio.sleep(self.grace)
        await self.assert_arrived(messages)
        assert _ids(await self.received()) == _ids(messages)

    async def assert_prefixes_arrived(self, messages: Sequence[Message], batch: RecordingBatch) -> None:
        """What arrived is what was answered as delivered, and of each key the beginning."""
        await self.assert_only_arrived(batch.delivered)
        whole = _by_lane(messages)
        for lane, ids in _by_lane(batch.delivered).items():
            assert ids == whole[lane][: len(ids)]

    def _sendable(self, publisher: Publisher, messages: Iterable[Message]) -> list[Message]:
        lanes: set[Hashable] = set()
        sendable: list[Message] = []
        for message in messages:
            if publisher.features.ordered or _lane(message) not in lanes:
                sendable.append(message)
            lanes.add(_lane(message))
        return sendable[: publisher.features.max_batch]


class _MendableTest(_PublisherTest):
    @abstractmethod
    async def mend_destination(self) -> None:
        """All is well again."""


class DeliveryContract(_PublisherTest):
    async def test_every_message_is_answered_and_arrives(self, publisher: Publisher) -> None:
        messages = self.messages(10, keys=["a", "b", None])
        await self.deliver(publisher, messages)
        await self.assert_only_arrived(messages)

    async def test_an_empty_batch_is_no_problem(self, publisher: Publisher) -> None:
        await self.hand_over(publisher, [])
        assert not await self.received()

    async def test_a_delivered_message_has_arrived_once(self, publisher: Publisher) -> None:
        messages = self.messages(20, keys=["a", "b"])
        await self.deliver(publisher, messages)
        received = await self.arrived(_ids(messages))
        assert len(received) == len(messages)

    @pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
    async def test_the_bytes_of_the_payload_arrive(self, publisher: Publisher, payload: bytes) -> None:
        kind = "application/octet-stream"
        messages = self.messages(1, payload=payload, content_type=kind)
        await self.deliver(publisher, messages)
        (received,) = await self.arrived(_ids(messages))
        assert received.payload == payload

    async def test_topic_key_and_headers_arrive(self, publisher: Publisher) -> None:
        value = "Zürich → 東京" if self.unicode_headers else "Zurich"
        headers = {"tenant": "shop-1", "city": value, "empty": ""}
        fields: dict[str, Any] = {"headers": headers, "type": "OrderPlaced", "sequence": 7, "generation": 1}
        messages = self.messages(2, keys=["Kunde/ä b", None], **fields)
        await self.deliver(publisher, messages)
        received = {each.id: each for each in await self.arrived(_ids(messages))}
        for message in messages:
            arrived = received[message.id]
            assert (arrived.topic, arrived.key) == (message.topic, message.key)
            assert dict(arrived.headers).items() >= message.wire_headers().items()

    async def test_the_messages_of_a_key_arrive_in_order(self, publisher: Publisher) -> None:
        messages = self.messages(50)
        await self.deliver(publisher, messages)
        await self.assert_only_arrived(messages)

    async def test_a_large_batch_arrives_in_order(self, publisher: Publisher) -> None:
        messages = self.messages(self.many, keys=[*(f"key-{n}" for n in range(97)), None])
        await self.deliver(publisher, messages)
        await self.assert_only_arrived(messages)

    async def test_several_calls_at_once_do_not_disturb_each_other(self, publisher: Publisher) -> None:
        calls = [self.messages(100, keys=[f"{call}-{n}" for n in range(7)]) for call in range(5)]
        await asyncio.gather(*(self.deliver(publisher, messages) for messages in calls))
        await self.assert_only_arrived([message for messages in calls for message in messages])

    async def test_it_may_be_closed_unused_and_twice(self) -> None:
        publisher = await self.make_publisher()
        await publisher.close()
        await publisher.close()


class LeaseContract(_PublisherTest):
    """`may_start`: nothing leaves that could arrive after the lease is over."""

    async def test_nothing_is_sent_when_no_time_is_left(self, publisher: Publisher) -> None:
        batch = await self.hand_over(publisher, self.messages(10, keys=["a", "b", None]), starts=0)
        assert {type(error) for error in batch.answers.values()} == {NotAttempted}
        await self.assert_only_arrived([])

    @pytest.mark.parametrize("starts", [1, 2, 5])
    async def test_what_is_not_sent_for_want_of_time_is_said_so(self, publisher: Publisher, starts: int) -> None:
        messages = self.messages(40, keys=["a", "b", "c", None])
        batch = await self.hand_over(publisher, messages, starts=starts)
        assert {type(batch.error_of(message)) for message in batch.failed} <= {NotAttempted}
        await self.assert_prefixes_arrived(messages, batch)


class OutageContract(_MendableTest):
    @abstractmethod
    async def break_destination(self) -> None:
        """From now on the destination fails at once: the connection is refused, the disk is full."""

    async def test_an_outage_blames_no_message(self, publisher: Publisher) -> None:
        messages = self.messages(10, keys=["a", "b", None])
        await self.break_destination()
        for _ in range(2):
            self._assert_outage(await self.hand_over(publisher, messages, timeout=2.0))
        await self.mend_destination()
        await self.assert_only_arrived([])
        await self.deliver(publisher, messages)
        await self.assert_only_arrived(messages)

    async def test_an_outage_after_good_times_is_noticed_and_survived(self, publisher: Publisher) -> None:
        before, after = self.messages(10), self.messages(10)
        await self.deliver(publisher, before)
        await self.arrived(_ids(before))
        await self.break_destination()
        self._assert_outage(await self.hand_over(publisher, after, timeout=2.0))
        await self.mend_destination()
        await self.deliver(publisher, after)
        await self.assert_only_arrived([*before, *after])

    async def test_an_outage_in_the_middle_loses_and_reorders_nothing(self, publisher: Publisher) -> None:
        messages = self.messages(self.many // 2, keys=[f"key-{n}" for n in range(20)])
        delivery = asyncio.ensure_future(self.deliver(publisher, messages))
        for _ in range(3):
            await asyncio.sleep(0.002)
            await self.break_destination()
            await asyncio.sleep(0.002)
            await self.mend_destination()
        await delivery
        await self.assert_only_arrived(messages)

    async def test_it_can_be_closed_during_an_outage(self) -> None:
        publisher = await self.make_publisher()
        await self.break_destination()
        await self.hand_over(publisher, self.messages(3), timeout=2.0)
        await publisher.close()
        await self.mend_destination()

    def _assert_outage(self, batch: RecordingBatch) -> None:
        errors = [error for error in batch.answers.values() if not isinstance(error, NotAttempted)]
        assert errors, "nobody said that the destination is down"
        assert all(error is not None and is_unavailable(error) for error in errors), errors


class TimeoutContract(_MendableTest):
    """A destination that takes nothing and says nothing."""

    @abstractmethod
    async def hang_destination(self) -> None:
        """From now on the destination accepts nothing and says nothing. What is on its way when it is mended is thrown
        away, so that whatever arrives afterwards has left the publisher afterwards."""

    async def test_silence_is_an_outage_and_nothing_leaves_afterwards(self, publisher: Publisher) -> None:
        messages = self.messages(100, keys=[*(f"key-{n}" for n in range(40)), None])
        await self.hang_destination()
        batch = await self.hand_over(publisher, messages, timeout=0.2)
        assert not batch.delivered
        errors = [error for error in batch.answers.values() if not isinstance(error, NotAttempted)]
        assert all(error is not None and is_unavailable(error) for error in errors), errors
        await self._assert_nothing_leaves_any_more(publisher, messages)

    async def test_a_cancelled_call_abandons_what_it_queues(self, publisher: Publisher) -> None:
        messages = self.messages(100, keys=[*(f"key-{n}" for n in range(40)), None])
        await self.hang_destination()
        batch = self.batch(publisher, messages, timeout=1.0)
        call = asyncio.ensure_future(publisher.publish(batch))
        await asyncio.wait([call], timeout=0.05)
        await self._cancel(call, batch)
        assert not batch.delivered
        await self._assert_nothing_leaves_any_more(publisher, messages)

    async def test_cancelled_at_any_moment_nothing_is_lost_or_reordered(self, publisher: Publisher) -> None:
        messages: list[Message] = []
        for turns in range(0, 60, 3):
            new = self.messages(100, keys=[f"{turns}-{n}" for n in range(9)])
            batch = self.batch(publisher, new, timeout=1.0)
            call = asyncio.ensure_future(publisher.publish(batch))
            for _ in range(turns):
                await asyncio.sleep(0)
            await self._cancel(call, batch)
            delivered = _ids(batch.delivered)
            await self.arrived(delivered)
            await self.deliver(publisher, [message for message in new if message.id not in delivered])
            messages += new
        await self.assert_only_arrived(messages)

    async def _cancel(self, call: asyncio.Future[None], batch: RecordingBatch) -> None:
        call.cancel()
        await asyncio.wait([call], timeout=self.patience)
        assert call.done(), "publish goes on although it was cancelled"
        batch.over = True

    async def _assert_nothing_leaves_any_more(self, publisher: Publisher, messages: Sequence[Message]) -> None:
        await self.mend_destination()
        await self.assert_only_arrived([])
        await self.deliver(publisher, messages)
        await self.assert_only_arrived(messages)


class PublisherContract(DeliveryContract, LeaseContract, OutageContract, TimeoutContract):
    """What holds for every publisher: inherit from it, under a name that begins with Test."""


class RejectionContract(_MendableTest):
    """For destinations that can refuse one message and take the next."""

    @abstractmethod
    async def reject(self, ids: Collection[str]) -> None:
        """From now on, and until it is mended, the destination refuses these messages and takes others."""

    async def test_a_refused_message_is_to_blame_alone(self, publisher: Publisher) -> None:
        messages = self.messages(9, keys=["a", "b", "c", *(None,) * 6])
        refused = {messages[1].id, messages[5].id}
        await self.reject(refused)
        batch = await self.hand_over(publisher, messages)
        assert _ids(batch.failed) == refused
        self._assert_blamed(batch, refused)
        await self.assert_only_arrived([message for message in messages if message.id not in refused])

    async def test_a_batch_may_be_refused_altogether(self, publisher: Publisher) -> None:
        messages = self.messages(5, keys=["a", "b", None])[:3]
        await self.reject(_ids(messages))
        batch = await self.hand_over(publisher, messages)
        self._assert_blamed(batch, _ids(messages))
        await self.assert_only_arrived([])

    async def test_behind_a_refused_message_its_key_stops(self, publisher: Publisher) -> None:
        messages = self.messages(30, keys=["a", "b", None])
        bad = [message for message in messages if message.key == "a"][4]
        await self.reject({bad.id})
        delivered = await self._deliver_until_stuck(publisher, messages)
        assert [message.id for message in messages if message.key == "a"][:4] == [
            message.id for message in delivered if message.key == "a"
        ]
        assert len(delivered) == 4 + 20
        await self.mend_destination()
        await self.deliver(publisher, [message for message in messages if message.id not in _ids(delivered)])
        await self.assert_only_arrived(messages)

    @pytest.mark.parametrize("seed", range(5))
    async def test_wherever_refusals_fall_what_arrives_of_a_key_is_its_beginning(
        self, publisher: Publisher, seed: int
    ) -> None:
        dice = random.Random(seed)
        messages = self.messages(100, keys=[f"key-{n}" for n in range(8)])
        dice.shuffle(messages)
        refused = {message.id for message in messages if dice.random() < 0.15}
        await self.reject(refused)
        delivered = _ids(await self._deliver_until_stuck(publisher, messages))
        expected = _before(messages, lambda message: message.id in refused)
        assert delivered == _ids(expected)
        await self.assert_only_arrived(expected)

    async def _deliver_until_stuck(self, publisher: Publisher, messages: Sequence[Message]) -> list[Message]:
        """Everything up to the first refusal of each key, as a relay that holds refused keys would."""
        delivered: list[Message] = []
        held: set[Hashable] = set()
        rest = list(messages)
        while rest:
            batch = await self.hand_over(publisher, rest)
            delivered += batch.delivered
            self._assert_prefix(batch)
            refused = [m for m in batch.failed if not isinstance(batch.error_of(m), NotAttempted)]
            self._assert_blamed(batch, _ids(refused))
            held |= {_lane(message) for message in refused}
            rest = [m for m in rest if m.id not in _ids(batch.delivered) and _lane(m) not in held]
        return delivered

    def _assert_prefix(self, batch: RecordingBatch) -> None:
        failed: set[Hashable] = set()
        for message in batch.messages:
            if batch.error_of(message) is not None:
                failed.add(_lane(message))
            assert batch.error_of(message) is not None or _lane(message) not in failed, (
                f"{message.id} was delivered although a message before it in its key failed"
            )

    def _assert_blamed(self, batch: RecordingBatch, ids: Collection[str]) -> None:
        for id in ids:
            error = batch.answers[id]
            assert error is not None
            assert not isinstance(error, NotAttempted)
            assert not is_unavailable(error), f"a refusal was taken for an outage: {error!r}"


def _before(messages: Iterable[Message], stop: Callable[[Message], bool]) -> list[Message]:
    """Of each lane the messages before the first for which `stop` is true."""
    stopped: set[Hashable] = set()
    before: list[Message] = []
    for message in messages:
        if stop(message):
            stopped.add(_lane(message))
        if _lane(message) not in stopped:
            before.append(message)
    return before
