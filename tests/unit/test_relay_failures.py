"""What a relay does about messages that are refused, and destinations that are out of reach."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from postroom import (
    DestinationUnavailable,
    Message,
    MessageDead,
    MessageRejected,
    events,
)
from postroom.ports import Batch, Features
from postroom.publishers.memory import MemoryPublisher
from tests.unit.relay_shop import Shop
from tests.waiting import until

# --- failures of messages


async def test_a_held_key_delays_only_itself(shop: Shop) -> None:
    bad, behind, other = shop.add(key="bad"), shop.add(key="bad"), shop.add(key="good")

    def publish(message: Message) -> None:
        if message.id == bad.id:
            raise MessageRejected("no")
        shop.arrived.append(message)

    report = await shop.relay(publish, retry="steps 0s 1h").drain()
    assert [message.id for message in shop.arrived] == [other.id]
    assert (report.delivered, report.retried, report.held, report.pending) == (1, 2, 1, 2)
    assert await shop.state_of(bad) == "failed"
    assert await shop.state_of(behind) == "pending"


async def test_a_refused_message_is_tried_again_and_then_goes_before_those_behind_it(shop: Shop) -> None:
    first, second = shop.add(key="k"), shop.add(key="k")
    attempts: list[int] = []

    def publish(message: Message) -> None:
        if message.id == first.id:
            attempts.append(message.attempt)
            if message.attempt < 3:
                raise ValueError("not yet")
        shop.arrived.append(message)

    await shop.relay(publish, retry="immediate").drain()
    assert attempts == [1, 2, 3]
    assert [message.id for message in shop.arrived] == [first.id, second.id]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    ("failure", "count"),
    [
        (ValueError("it has no total"), 20),
        (ConnectionError("connection reset by peer"), 60),
        (DestinationUnavailable("503", retry_after=0.01), 8),
    ],
)
async def test_bad_messages_of_many_keys_stop_nobody_else_and_die(
    shop: Shop, workers: int, failure: Exception, count: int
) -> None:
    """In a row they look like an outage, again and again; only that others get through tells."""
    bad = [shop.add(key=f"bad-{number}", type="bad") for number in range(count)]

    async def publish(message: Message) -> None:
        await asyncio.sleep(0.001)
        if message.type == "bad":
            raise failure
        shop.arrived.append(message)

    async with shop.relay(publish, retry="steps 0s 10ms", breaker_initial="20ms", workers=workers):
        good = [shop.add(key=f"good-{number % 20}") for number in range(200)]

        def all_died() -> bool:
            if len(good) - len(shop.arrived) < 5:  # now and then, so that the bad ones are far more
                good.append(shop.add(key=f"good-{len(good) % 20}"))
            return shop.diary.dead() == {message.id for message in bad}

        await until(all_died)
        await until(lambda: len(shop.arrived) == len(good))
    assert shop.diary.dead() == {message.id for message in bad}
    assert len(shop.diary.of(events.BreakerOpened)) > 0


async def test_each_failure_is_logged_with_the_message_and_what_it_failed_of(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    message = shop.add(key="k")

    def publish(message: Message) -> None:
        raise ValueError("not this one")

    await shop.relay(publish, retry="steps 0s").drain()
    failed, dead = [record.getMessage() for record in caplog.records if message.id in record.getMessage()]
    assert "(orders, key 'k') failed at attempt 1, next in 0 s: ValueError: not this one" in failed
    assert "is dead (attempts)" in dead
    assert "ValueError: not this one" in dead


async def test_messages_with_one_id_keep_their_order_too(shop: Shop) -> None:
    """A message that was sent again may fail beside the first."""
    first = shop.add(key="k", payload={"n": 0})
    again = first
    for _ in range(3):
        with shop.store.begin() as transaction:
            (again,) = shop.outbox.resend(transaction, again)
    last = shop.add(key="k")
    failed: set[int] = set()

    def publish(message: Message) -> None:
        if message.replays in (1, 2) and message.replays not in failed:
            failed.add(message.replays)
            raise ValueError("not yet")
        shop.arrived.append(message)

    await shop.relay(publish, retry="immediate").drain()
    assert [(message.id, message.replays) for message in shop.arrived] == [
        *((first.id, replays) for replays in range(4)), (last.id, 0)
    ]  # fmt: skip


async def test_a_dead_message_holds_up_those_of_the_same_id(shop: Shop) -> None:
    first = shop.add(key="k")
    with shop.store.begin() as transaction:
        shop.outbox.resend(transaction, first)
    shop.add(key="k")

    def publish(message: Message) -> None:
        if not message.replays:
            raise MessageRejected("no", permanent=True)
        shop.arrived.append(message)

    report = await shop.relay(publish).drain()
    assert (shop.arrived, report.dead, report.pending) == ([], 1, 2)


@pytest.mark.parametrize(("on_dead", "arrives"), [("block", False), ("continue", True)])
async def test_a_dead_message_holds_its_key_or_lets_it_go_on(shop: Shop, on_dead: str, arrives: bool) -> None:
    bad, behind = shop.add(key="k"), shop.add(key="k")

    def publish(message: Message) -> None:
        if message.id == bad.id:
            raise MessageRejected("never", permanent=True)
        shop.arrived.append(message)

    report = await shop.relay(publish, on_dead=on_dead).drain()
    assert report.dead == 1
    assert await shop.state_of(bad) == "dead"
    assert (behind.id in [message.id for message in shop.arrived]) is arrives


async def test_a_revived_message_keeps_its_place(shop: Shop) -> None:
    bad, behind = shop.add(key="k"), shop.add(key="k")
    broken = True

    def publish(message: Message) -> None:
        if broken and message.id == bad.id:
            raise MessageRejected("no", permanent=True)
        shop.arrived.append(message)

    relay = shop.relay(publish)
    await relay.drain()
    broken = False
    assert await shop.store.revive([bad.id]) == 1
    await relay.drain()
    assert [message.id for message in shop.arrived] == [bad.id, behind.id]


async def test_a_discarded_message_lets_its_key_go_on(shop: Shop) -> None:
    bad, behind = shop.add(key="k"), shop.add(key="k")

    def publish(message: Message) -> None:
        if message.id == bad.id:
            raise MessageRejected("no", permanent=True)
        shop.arrived.append(message)

    relay = shop.relay(publish)
    await relay.drain()
    await shop.store.discard([bad.id])
    await relay.drain()
    assert [message.id for message in shop.arrived] == [behind.id]
    assert await shop.state_of(bad) == "discarded"


async def test_dead_messages_try_again_by_themselves_after_a_time(shop: Shop) -> None:
    bad = shop.add(key="k")
    attempts = 0

    def publish(message: Message) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise MessageRejected("no", permanent=True)

    async with shop.relay(publish, revive_after="100ms") as relay:
        with pytest.raises(MessageDead):
            await relay.delivered(bad.id, timeout=20)
        await until(lambda: attempts == 2)


async def test_a_publisher_may_raise_anything_but_what_ctrl_c_does(shop: Shop) -> None:
    class Strange(BaseException):
        pass

    message = shop.add(key="k")
    errors: list[BaseException] = [Strange("odd"), SystemExit(3), asyncio.CancelledError()]

    async def publish(message: Message) -> None:
        if errors:
            raise errors.pop()

    report = await shop.relay(publish, retry="immediate").drain()
    assert report.delivered == 1
    assert await shop.state_of(message) is None


async def test_a_publisher_that_answers_for_too_few_messages_fails_those(shop: Shop) -> None:
    class Forgetful:
        features = Features(ordered=True)

        async def publish(self, batch: Batch) -> None:
            batch.answer(batch.messages[0])

        async def close(self) -> None: ...

    shop.add(key="a")
    shop.add(key="b")
    report = await shop.relay(Forgetful(), retry="steps 1h").drain()
    assert (report.delivered, report.retried) == (1, 1)
    assert "did not say" in shop.diary.of(events.Retried)[0].error


# --- failures of destinations


async def test_an_outage_costs_no_attempts_and_is_over_by_itself(shop: Shop) -> None:
    down = True
    attempts: set[int] = set()

    def publish(message: Message) -> None:
        attempts.add(message.attempt)
        if down:
            raise ConnectionError("refused")
        shop.arrived.append(message)

    for number in range(20):
        shop.add(key=f"k{number}")
    relay = shop.relay(publish, breaker_initial="5ms", breaker_cap="10ms")
    async with relay:
        await until(lambda: bool(shop.diary.of(events.BreakerOpened)))
        await asyncio.sleep(0.2)
        down = False
        await until(lambda: len(shop.arrived) == 20)
    assert attempts == {1}
    assert not shop.diary.of(events.Died)
    assert shop.diary.of(events.BreakerClosed)


async def test_a_broken_destination_delays_only_itself(shop: Shop) -> None:
    def broken(message: Message) -> None:
        raise DestinationUnavailable("down")

    for number in range(30):
        shop.add("hooks.a", f"k{number}")
        shop.add("orders", f"k{number}")
    report = await shop.relay({"hooks.*": broken, "*": shop.arrived.append}, batch_size=4).drain()
    assert {message.topic for message in shop.arrived} == {"orders"}
    assert (report.delivered, report.pending, report.dead) == (30, 30, 0)


@pytest.mark.parametrize(
    "failure", [ConnectionError("it crashes the broker's parser"), DestinationUnavailable("later", retry_after=0.003)]
)
async def test_a_poison_message_that_looks_like_an_outage_is_charged_and_dies(shop: Shop, failure: Exception) -> None:
    poison = shop.add(key="poison")
    for number in range(40):
        shop.add(key=f"k{number}")

    def publish(message: Message) -> None:
        if message.id == poison.id:
            raise failure
        shop.arrived.append(message)

    async with shop.relay(publish, breaker_initial="2ms", breaker_cap="4ms", retry="steps 0s 0s") as relay:
        for number in range(4000):
            if shop.diary.of(events.Died):
                break
            shop.add(key=f"more{number}")
            await asyncio.sleep(0.005)
        with pytest.raises(MessageDead):
            await relay.delivered(poison.id, timeout=20)
    assert len(shop.arrived) >= 40
    assert [event.message.id for event in shop.diary.of(events.Died)] == [poison.id]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("workers", [1, 4])
async def test_a_missing_topic_costs_no_attempts_and_is_over_by_itself(shop: Shop, workers: int, keyed: bool) -> None:
    attempts: list[int] = []
    missing = True

    def publish(message: Message) -> None:
        if message.topic == "b":
            attempts.append(message.attempt)
            if missing:
                raise DestinationUnavailable("no such topic")
        shop.arrived.append(message)

    settings = {"breaker_initial": "2ms", "breaker_cap": "4ms", "retry": "never", "workers": workers}
    waiting = [shop.add("b", f"k{number}" if keyed else None) for number in range(12)]
    good: list[Message] = []
    async with shop.relay(publish, **settings):

        def tried_often() -> bool:
            good.append(shop.add("a", f"k{len(good) % 20}"))
            return len(attempts) > 60

        await until(tried_often)
        await until(lambda: len(shop.arrived) == len(good))
        assert not shop.diary.of(events.Died)
        missing = False
        await until(lambda: len(shop.arrived) == len(good) + len(waiting))
    assert set(attempts) == {1}
    assert len(shop.diary.of(events.BreakerOpened)) < 30, "it does not trip the destination again and again"
    (held_back, *_), (resumed, *_) = shop.diary.of(events.TopicHeldBack), shop.diary.of(events.TopicResumed)
    assert (held_back.topic, held_back.error) == ("b", "DestinationUnavailable: no such topic")
    assert resumed.topic == "b"


async def test_a_missing_topic_takes_no_room_from_the_others(shop: Shop) -> None:
    """Its messages fill no memory that the others need, however many wait."""

    def publish(message: Message) -> None:
        if message.topic == "b":
            raise DestinationUnavailable("no such topic")
        shop.arrived.append(message)

    async with shop.relay(publish, batch_size=5, breaker_initial="2ms", breaker_cap="4ms", workers=1):
        for number in range(100):
            shop.add("b", f"k{number}")
            shop.add("a", f"k{number}")
            await until(lambda: len([message for message in shop.arrived if message.topic == "a"]) > number)  # noqa: B023


async def test_a_poison_message_is_found_out_by_others_of_its_topic(shop: Shop) -> None:
    """Those of other topics get through meanwhile, so its topic is held back; but good ones of it are tried first."""
    poison = shop.add("t", "poison")

    def publish(message: Message) -> None:
        if message.id == poison.id:
            raise ConnectionError("it crashes the broker's parser")
        shop.arrived.append(message)

    good: list[Message] = []
    async with shop.relay(publish, breaker_initial="2ms", breaker_cap="4ms", retry="never", workers=4):

        def it_died() -> bool:
            good.extend([shop.add("a", f"k{len(good)}"), shop.add("t", f"k{len(good)}")])
            return bool(shop.diary.of(events.Died))

        await until(it_died)
        await until(lambda: len(shop.arrived) == len(good))
    assert shop.diary.dead() == {poison.id}


async def test_an_outage_that_looks_like_bad_messages_kills_none_of_them(shop: Shop) -> None:
    misjudged = True

    def publish(message: Message) -> None:
        if misjudged:
            raise MessageRejected("500 in disguise")
        shop.arrived.append(message)

    for number in range(12):
        shop.add(key=f"k{number}" if number % 2 else None)
    async with shop.relay(publish, breaker_initial="5ms", breaker_cap="10ms", trip_after=5, retry="never"):
        await until(lambda: bool(shop.diary.of(events.Refunded)))
        misjudged = False
        await until(lambda: len(shop.arrived) == 12)
    status = await shop.store.status()
    assert status.counts.get("dead", 0) == 0


async def test_messages_that_are_refused_for_good_are_dead_however_many_there_are(shop: Shop) -> None:
    bad = {shop.add(key=f"bad{number}").id for number in range(30)}

    def publish(message: Message) -> None:
        if message.id in bad:
            raise MessageRejected("never", permanent=True)
        shop.arrived.append(message)

    good = shop.add(key="good")
    report = await shop.relay(publish).drain()
    assert (report.dead, report.delivered) == (30, 1)
    assert [message.id for message in shop.arrived] == [good.id]


async def test_a_slow_key_with_a_backlog_does_not_stop_the_others(shop: Shop) -> None:
    for _ in range(400):
        shop.add(key="slow")

    async def publish(message: Message) -> None:
        if message.key == "slow":
            await asyncio.sleep(0.2)
        else:
            shop.arrived.append(message)

    async with shop.relay(publish, batch_size=20):
        await asyncio.sleep(0.2)
        others = {shop.add(key=f"k{number}").id for number in range(100)}
        await until(lambda: {message.id for message in shop.arrived} == others, within=30)


async def test_pausing_and_resuming_during_an_outage_leaves_nothing_stuck(shop: Shop) -> None:
    down = True

    def publish(message: Message) -> None:
        if down:
            raise ConnectionError("down")
        shop.arrived.append(message)

    async with shop.relay(publish, breaker_initial="5ms", breaker_cap="20ms", idle_interval="50ms") as relay:
        shop.add(key="k")
        await until(lambda: bool(shop.diary.of(events.BreakerOpened)))
        relay.pause("*")
        await asyncio.sleep(0.1)
        relay.resume("*")
        down = False
        await until(lambda: len(shop.arrived) == 1)


@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), type("Odd", (BaseException,), {})("odd")])
async def test_whatever_a_publisher_object_raises_is_a_failed_attempt(shop: Shop, error: BaseException) -> None:
    class Odd:
        features = Features(ordered=True)
        calls = 0

        async def publish(self, batch: Batch) -> None:
            self.calls += 1
            raise error

        async def close(self) -> None: ...

    odd = Odd()
    shop.add(key="k")
    report = await shop.relay(odd, retry="steps 0s 1h").drain()
    assert (odd.calls, report.retried, report.held) == (2, 2, 1)


async def test_a_slow_publisher_is_timed_out_as_a_destination_failure(shop: Shop) -> None:
    async def publish(message: Message) -> None:
        await asyncio.sleep(60)

    message = shop.add(key="k")
    report = await shop.relay(publish, lease_ttl=2, publish_timeout="50ms").drain()
    assert (report.delivered, report.pending, report.dead) == (0, 1, 0)
    assert await shop.state_of(message) == "pending"
    assert "50" in shop.diary.of(events.BreakerOpened)[0].error or shop.diary.of(events.BreakerOpened)[0].error


async def test_a_slow_function_that_has_more_to_do_than_room_for_is_no_outage(shop: Shop) -> None:
    calls: list[str] = []

    def has_been_given_back() -> bool:
        return bool(shop.diary.of(events.Published)) and not shop.diary.of(events.Delivered)

    async def publish(message: Message) -> None:
        calls.append(message.id)
        if len(calls) == 1:
            await until(has_been_given_back)

    added = [shop.add(key=f"k{number}") for number in range(12)]
    settings = {"lease_ttl": 6, "publish_timeout": "2s", "concurrency": 1, "batch_size": 2, "workers": 1}
    async with shop.relay(publish, **settings) as relay:
        for message in added:
            await relay.delivered(message.id, timeout=20)
    assert sorted(calls) == sorted(message.id for message in added)
    assert not shop.diary.of(events.BreakerOpened)


async def test_what_was_allowed_to_start_has_the_whole_time_out(shop: Shop) -> None:
    left: list[float] = []

    class Starting(MemoryPublisher):
        async def publish(self, batch: Any) -> None:
            loop, first = asyncio.get_running_loop(), batch.limit.when()
            await until(lambda: loop.time() + batch.timeout > first)
            assert batch.may_start()
            left.append(batch.limit.when() - loop.time() - batch.timeout)
            await super().publish(batch)

    shop.add(key="k")
    assert (await shop.relay(Starting("memory:"), lease_ttl=6, publish_timeout="2s").drain()).delivered == 1
    assert left[0] > 0


async def test_a_topic_without_a_route_stays_pending(shop: Shop) -> None:
    shop.add("mail", "k")
    shop.add("orders", "k")
    report = await shop.relay({"orders": shop.arrived.append}).drain()
    assert (report.delivered, report.pending) == (1, 1)


async def test_the_rate_can_be_capped(shop: Shop) -> None:
    for number in range(30):
        shop.add(key=f"k{number}")
    async with shop.relay(max_rate=50):
        started = time.monotonic()
        await until(lambda: len(shop.arrived) == 30)
        assert time.monotonic() - started > 0.3  # 30 at 50 a second, less what may burst


@pytest.mark.parametrize("keys", [1, 30])
async def test_a_capped_rate_is_the_relays_whatever_the_keys(shop: Shop, keys: int) -> None:
    """One hot key may have all of it, though one pump has the key."""
    for number in range(30):
        shop.add(key=f"k{number % keys}")
    async with shop.relay(max_rate=20, workers=4) as relay:
        assert relay._session is not None
        ((rate,),) = {tuple({outlet.rate for outlet in pump._outlets}) for pump in relay._session.pumps}
        assert rate is not None
        assert rate.limit == 20
        await until(lambda: len(shop.arrived) == 30)


async def test_a_drain_waits_until_the_rate_allows_the_rest(shop: Shop) -> None:
    for number in range(10):
        shop.add(key=f"k{number}")
    report = await shop.relay(max_rate=50).drain()
    assert (report.delivered, report.pending) == (10, 0)


async def test_a_drain_waits_for_a_renewal_if_the_lease_is_too_short_to_start_the_rest(shop: Shop) -> None:
    for _ in range(60):
        shop.add(key="k")

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.01)

    report = await shop.relay(slow, lease_ttl=1).drain()
    assert (report.delivered, report.pending) == (60, 0)


async def test_an_outage_that_another_relay_saw_is_over_with_the_first_success(shop: Shop) -> None:
    """As when drains are started again and again, and one of them met an outage: `status` must not show it for ever."""
    is_down = True

    def publish(message: Message) -> None:
        if is_down:
            raise DestinationUnavailable("503")
        shop.arrived.append(message)

    async def outages() -> list[bool]:
        return [breaker["tripped_at"] is not None for breaker in (await shop.store.status()).breakers]

    shop.add()
    await shop.relay(publish).drain()
    assert await outages() == [True]
    is_down = False
    await shop.relay(publish).drain()
    assert len(shop.arrived) == 1
    assert await outages() == [False]
    assert len(shop.diary.of(events.BreakerOpened)) == 1
