"""Functions as destinations, beyond what the contract suite asks of all publishers."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from postroom.errors import ConfigurationError, DestinationUnavailable, MessageRejected, NotAttempted
from postroom.message import Message
from postroom.publishers.callable import TURN, CallablePublisher, _Work
from postroom.testing.batch import RecordingBatch, hand_over
from tests.unit.publishing import PATIENCE, kinds, message, messages, publish, run
from tests.waiting import until


class Asynchronous:
    """An object whose instances are called like async functions."""

    def __init__(self) -> None:
        self.taken: list[Message] = []

    async def __call__(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.taken.append(message)


class TestCallableForms:
    async def test_every_kind_of_function_is_really_run(self) -> None:
        taken = Asynchronous()

        async def coroutine(message: Message, *_: object) -> None:
            await taken(message)

        class Synchronous:
            def __call__(self, message: Message) -> None:
                taken.taken.append(message)

        functions: list[Callable[..., object]] = [
            coroutine,
            functools.partial(coroutine),
            taken,
            functools.partial(taken),
            taken.__call__,
            lambda message: coroutine(message),
            Synchronous(),
            taken.taken.append,
        ]
        for number, function in enumerate(functions, start=1):
            publisher = CallablePublisher(function)
            assert not (await publish(publisher, [message()])).failed
            assert len(taken.taken) == number
            await publisher.close()

    @pytest.mark.parametrize("result", [None, False, 0, "no", ValueError("returned")])
    async def test_what_it_returns_does_not_matter(self, result: object) -> None:
        async def on_loop(message: Message) -> object:
            return result

        for function in (on_loop, lambda _: result):
            assert not (await publish(CallablePublisher(function), [message()])).failed

    async def test_a_sync_function_does_not_run_on_the_loop(self) -> None:
        threads: list[threading.Thread] = []
        variable = contextvars.ContextVar("variable", default="unset")
        variable.set("set")
        publisher = CallablePublisher(
            lambda _: threads.append(threading.current_thread()) or seen.append(variable.get())
        )
        seen: list[str] = []
        await publish(publisher, messages("aaa"))
        assert threads[0] is not threading.current_thread()
        assert len(set(threads)) == 1
        assert seen == ["set"] * 3
        await publisher.close()
        await until(lambda: not threads[0].is_alive())
        assert not (await publish(publisher, messages("a"))).failed

    def test_it_may_outlive_a_loop(self) -> None:
        async def slow(message: Message) -> None:
            await asyncio.sleep(0.001)

        publisher = CallablePublisher(slow, concurrency=1)
        for _ in range(2):
            batch = asyncio.run(publish(publisher, messages("abc")))
            assert not batch.failed

    def test_wrong_functions_are_refused_at_once(self) -> None:
        def generator(message: Message) -> Any:
            yield

        async def async_generator(message: Message) -> Any:
            yield

        def no_parameter() -> None: ...

        def two_parameters(message: Message, context: object) -> None: ...

        def named_parameter(message: Message, *, context: object) -> None: ...

        wrong: list[Any] = [None, "print", generator, async_generator, no_parameter, two_parameters, named_parameter]
        for function in wrong:
            with pytest.raises(ConfigurationError):
                CallablePublisher(function)

    @pytest.mark.parametrize("settings", [{"concurrency": 0}, {"unavailable": "KeyError"}, {"unavailable": (int,)}])
    def test_wrong_settings_are_refused_at_once(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            CallablePublisher(print, **settings)


class TestCallableOrder:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_keys_run_at_the_same_time_and_each_in_turn(self, kind: str) -> None:
        running: set[str | None] = set()
        most = 0
        overlapped = False

        def enter(message: Message) -> None:
            nonlocal most, overlapped
            overlapped |= message.key in running
            running.add(message.key)
            most = max(most, len(running))

        async def on_loop(message: Message) -> None:
            enter(message)
            await asyncio.sleep(0.005)
            running.discard(message.key)

        def in_thread(message: Message) -> None:
            enter(message)
            time.sleep(0.005)
            running.discard(message.key)

        publisher = CallablePublisher(on_loop if kind == "async" else in_thread, concurrency=4)
        calls = [messages(f"{call}{n % 5}" for n in range(20)) for call in "xyz"]
        batches = await asyncio.gather(*(publish(publisher, call) for call in calls))
        assert not any(batch.failed for batch in batches)
        assert not overlapped
        assert most == 4

    async def test_an_answer_is_given_as_soon_as_it_is_known(self) -> None:
        gate = asyncio.Event()

        async def function(message: Message) -> None:
            if message.key == "slow":
                await gate.wait()

        batch = RecordingBatch(messages(["slow", "fast", "slow", "fast"]))
        call = asyncio.ensure_future(CallablePublisher(function).publish(batch))
        await until(lambda: len(batch.delivered) == 2)
        assert {message.key for message in batch.delivered} == {"fast"}
        gate.set()
        await call
        assert len(batch.delivered) == 4

    async def test_behind_a_failure_its_key_is_not_attempted(self) -> None:
        async def function(message: Message) -> None:
            if message.key == "a":
                raise MessageRejected("no")

        batch = await publish(CallablePublisher(function), messages(["a", "b", "a", None, "a", "b"]))
        assert kinds(batch) == ["MessageRejected", "NoneType", "NotAttempted", "NoneType", "NotAttempted", "NoneType"]

    async def test_messages_without_a_key_do_not_wait_for_each_other(self) -> None:
        barrier = threading.Barrier(5)
        assert not (await publish(CallablePublisher(lambda _: barrier.wait(PATIENCE)), messages([None] * 5))).failed

    @pytest.mark.parametrize("keys", ["a" * 20, "abcdefghijklmnopqrst"])
    async def test_a_function_that_never_waits_does_not_keep_the_loop(self, keys: str) -> None:
        turns = 0

        async def function(message: Message) -> None:
            seen.append(turns)
            time.sleep(2 * TURN)

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        seen: list[int] = []
        counting = asyncio.ensure_future(count())
        await publish(CallablePublisher(function), messages(keys))
        counting.cancel()
        assert seen[-1] - seen[0] >= 19

    async def test_calls_that_never_wait_let_those_of_other_batches_have_their_turn(self) -> None:
        """Also those that once had to wait."""
        order: list[str] = []

        async def function(message: Message) -> None:
            if message.key == "waiting":
                await asyncio.sleep(0)
            time.sleep(2 * TURN)
            order.append(str(message.type))

        publisher = CallablePublisher(function)
        waiting = [message(key, type="few") for key in ("waiting", "a", "b", "c")]
        many = [message(str(key), type="many") for key in range(100)]
        await asyncio.gather(publish(publisher, many), publish(publisher, waiting))
        assert order.count("few") == 4
        assert order.index("many") < 4
        assert "few" not in order[50:]


class TestCallableRoom:
    """All batches share it."""

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_what_finds_none_in_good_time_is_given_back_and_what_runs_goes_on(self, kind: str) -> None:
        gate, called = threading.Event(), list[str | None]()

        async def on_loop(message: Message) -> None:
            called.append(message.key)
            await until(gate.is_set)

        def in_thread(message: Message) -> None:
            called.append(message.key)
            gate.wait(PATIENCE)

        publisher = CallablePublisher(on_loop if kind == "async" else in_thread, concurrency=1)
        running = asyncio.ensure_future(publish(publisher, messages("a"), timeout=PATIENCE))
        await until(lambda: called)
        batch = await publish(publisher, messages("bbc"), timeout=0.2)
        assert kinds(batch) == ["NotAttempted"] * 3
        assert "took all the room" in str(batch.error_of(batch.messages[0]))
        gate.set()
        assert not (await running).failed
        assert not (await publish(publisher, messages("bbc"))).failed
        assert called == ["a", "b", "b", "c"] or called == ["a", "b", "c", "b"]

    async def test_an_answer_to_its_batch_is_a_reason_to_wait_on(self) -> None:
        room = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            work = _Work(RecordingBatch([], timeout=PATIENCE), deque(), group, more=0)
            waiting = group.create_task(work.found(room))
            await until(lambda: work._limit)
            assert work._limit is not None
            before = work._limit.when()
            await until(lambda: work.heard() or work._limit.when() > before)  # type: ignore[union-attr]
            room.release()
        assert waiting.result()

    async def test_many_large_batches_do_not_keep_a_small_one_from_its_turn(self) -> None:
        order, busy = list[str | None](), asyncio.Event()

        async def function(message: Message) -> None:
            order.append(message.type)
            if len(order) == 200:
                busy.set()
            await asyncio.sleep(0)

        publisher = CallablePublisher(function, concurrency=8)
        large = [[message(str(key), type="large") for key in range(100)] for _ in range(6)]
        calls = [asyncio.ensure_future(publish(publisher, batch)) for batch in large]
        await busy.wait()
        before = len(order)
        assert not (await publish(publisher, [message(type="small")])).failed
        assert order.index("small") - before < 30
        assert not any(batch.failed for batch in await asyncio.gather(*calls))


class TestCallableContext:
    @pytest.mark.parametrize("keys", ["abcdefgh", "a" * 8])
    @pytest.mark.parametrize("waits", [True, False])
    async def test_what_one_call_sets_no_other_sees(self, waits: bool, keys: str) -> None:
        tenant, seen = contextvars.ContextVar("tenant", default="nobody"), list[str]()

        async def function(message: Message) -> None:
            seen.append(tenant.get())
            tenant.set(str(message.key))
            if waits:
                await asyncio.sleep(0)
                await asyncio.sleep(0.001)

        tenant.set("relay")
        await publish(CallablePublisher(function, concurrency=2), messages(keys))
        assert seen == ["relay"] * 8
        assert tenant.get() == "relay"

    async def test_a_call_keeps_its_own_however_often_it_waits(self) -> None:
        tenant, seen = contextvars.ContextVar("tenant", default="nobody"), list[str]()

        async def look() -> None:
            seen.append(tenant.get())

        async def function(message: Message) -> None:
            token = tenant.set("own")
            await asyncio.sleep(0)
            await look()
            await asyncio.create_task(look())
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(PATIENCE)
            await look()
            await asyncio.sleep(0.001)
            tenant.reset(token)
            await look()

        assert not (await publish(CallablePublisher(function), [message()])).failed
        assert seen == ["own"] * 3 + ["nobody"]

    @pytest.mark.parametrize("waits", [True, False])
    async def test_it_runs_in_a_task_that_it_may_ask_for(self, waits: bool) -> None:
        tasks: list[asyncio.Task[Any] | None] = []

        async def function(message: Message) -> None:
            async with asyncio.timeout(PATIENCE):
                await asyncio.sleep(0.001 if waits else 0)
                tasks.append(asyncio.current_task())

        assert not (await publish(CallablePublisher(function), [message()])).failed
        assert tasks[0] is not None
        assert tasks[0] is not asyncio.current_task()

    async def test_it_is_there_when_a_call_is_cancelled(self) -> None:
        tenant, seen = contextvars.ContextVar("tenant", default="nobody"), list[str]()

        async def function(message: Message) -> None:
            tenant.set("own")
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                seen.append(tenant.get())

        assert kinds(await publish(CallablePublisher(function), [message()], timeout=0.1)) == ["TimeoutError"]
        assert seen == ["own"]


class TestCallableFailures:
    @pytest.mark.parametrize(
        "error",
        [
            ValueError,
            StopIteration,
            SystemExit,
            KeyboardInterrupt,
            asyncio.CancelledError,
            GeneratorExit,
            BaseException,
        ],
    )
    async def test_whatever_a_function_raises_in_a_thread_is_its_messages_failure(
        self, error: type[BaseException]
    ) -> None:
        def function(message: Message) -> None:
            if message.key == "a":
                raise error("x")

        batch = await publish(CallablePublisher(function), messages(["a", "a", "b"]))
        assert kinds(batch) == [error.__name__, "NotAttempted", "NoneType"]

    @pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError, BaseException])
    async def test_whatever_a_function_raises_on_the_loop_is_its_messages_failure(
        self, error: type[BaseException]
    ) -> None:
        async def function(message: Message) -> None:
            await asyncio.sleep(0)
            if message.key == "a":
                raise error("x")

        assert kinds(await publish(CallablePublisher(function), messages("a"))) == [error.__name__]
        batch = await publish(CallablePublisher(function), messages(["a", "a", "b"]))
        assert kinds(batch) == [error.__name__, "NotAttempted", "NoneType"]

    def test_somebody_who_presses_a_key_to_stop_is_heard(self) -> None:
        async def function(message: Message) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(CallablePublisher(function).publish(RecordingBatch(messages("a"))))

    async def test_in_a_relays_own_thread_that_is_a_failure_too(self) -> None:
        async def function(message: Message) -> None:
            raise KeyboardInterrupt

        batch = await asyncio.to_thread(lambda: asyncio.run(publish(CallablePublisher(function), messages("a"))))
        assert kinds(batch) == ["KeyboardInterrupt"]

    @pytest.mark.parametrize("unavailable", [KeyError, (ValueError, LookupError)])
    async def test_classes_named_as_such_are_outages(self, unavailable: Any) -> None:
        def function(message: Message) -> None:
            raise KeyError("token")

        batch = await publish(CallablePublisher(function, unavailable=unavailable), [message()])
        (error,) = batch.answers.values()
        assert isinstance(error, DestinationUnavailable)
        assert str(error) == "KeyError: 'token'"
        assert isinstance(error.__cause__, KeyError)

    async def test_a_thread_that_cannot_be_started_is_an_outage_for_one_message_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, called, started = threading.Event(), list[str | None](), list[str]()
        start = threading.Thread.start

        def start_but_the_second(thread: threading.Thread) -> None:
            if thread.name == "postroom-call":
                started.append(thread.name)
                if len(started) == 2:
                    raise RuntimeError("can't start new thread")
            start(thread)

        def function(message: Message) -> None:
            called.append(message.key)
            if message.key == "c":
                gate.set()
            assert gate.wait(PATIENCE)

        monkeypatch.setattr(threading.Thread, "start", start_but_the_second)
        publisher = CallablePublisher(function)
        batch = await publish(publisher, messages("abc"))
        assert kinds(batch) == ["NoneType", "DestinationUnavailable", "NoneType"]
        assert "can't start new thread" in str(batch.error_of(batch.messages[1]))
        assert not (await publish(publisher, messages("ddd"))).failed
        assert called == ["a", "c", "d", "d", "d"]


class TestCallableTimeouts:
    async def test_an_async_function_is_cancelled(self) -> None:
        cancelled: list[str | None] = []

        async def function(message: Message) -> None:
            try:
                await asyncio.sleep(PATIENCE if message.key == "slow" else 0)
            except asyncio.CancelledError:
                cancelled.append(message.key)
                raise

        batch = await publish(CallablePublisher(function), messages(["slow", "slow", "fast"]), timeout=0.3)
        assert kinds(batch) == ["TimeoutError", "NotAttempted", "NoneType"]
        assert cancelled == ["slow"]

    async def test_a_function_may_have_a_time_out_of_its_own(self) -> None:
        async def function(message: Message) -> None:
            raise TimeoutError("its own")

        batch = await publish(CallablePublisher(function), [message()])
        assert str(batch.error_of(batch.messages[0])) == "its own"

    async def test_a_thread_that_runs_over_its_time_keeps_only_its_key_waiting(self) -> None:
        gate = threading.Event()
        calls: list[str | None] = []

        def function(message: Message) -> None:
            calls.append(message.key)
            if message.key == "slow":
                gate.wait()

        publisher = CallablePublisher(function, concurrency=2)
        for _ in range(3):
            batch = await publish(publisher, messages(["slow", "slow", "a", "b", "c"]), timeout=0.3)
            assert kinds(batch) == ["TimeoutError", "NotAttempted", "NoneType", "NoneType", "NoneType"]
        assert calls.count("slow") == 1
        gate.set()
        await until(lambda: not publisher._calls._late)  # type: ignore[union-attr]
        assert not (await publish(publisher, messages(["slow"]))).failed

    async def test_as_many_hanging_calls_as_may_run_are_an_outage(self) -> None:
        gate = threading.Event()
        publisher = CallablePublisher(lambda _: gate.wait(), concurrency=2)
        assert kinds(await publish(publisher, messages("ab"), timeout=0.3)) == ["TimeoutError"] * 2
        assert kinds(await publish(publisher, messages("cd"))) == ["DestinationUnavailable"] * 2
        gate.set()

    async def test_a_call_that_the_relay_gave_up_is_not_said_to_have_run_over_its_time(self) -> None:
        gate, running = threading.Event(), threading.Event()

        def function(message: Message) -> None:
            running.set()
            assert gate.wait(PATIENCE)

        publisher = CallablePublisher(function)
        call = asyncio.ensure_future(publisher.publish(RecordingBatch(messages("a"))))
        await until(running.is_set)
        call.cancel()
        await asyncio.wait([call])
        (error,) = (await publish(publisher, messages("a"))).answers.values()
        assert str(error) == "the call before it, which is not waited for any more, has still not returned"
        gate.set()

    def test_a_hanging_thread_does_not_keep_the_interpreter_from_exiting(self) -> None:
        program = """if True:
            import asyncio, time
            from postroom.message import Message
            from postroom.publishers.callable import CallablePublisher
            from postroom.testing.batch import RecordingBatch, hand_over

            batch = RecordingBatch([Message(topic="t", payload=b"")], timeout=0.3)
            asyncio.run(hand_over(CallablePublisher(lambda message: time.sleep(1000)), batch))
            print(*map(repr, batch.answers.values()))
        """
        assert b"TimeoutError" in run(program).stdout

    async def test_the_time_before_a_function_first_waits_counts(self) -> None:
        later: list[str | None] = []

        async def function(message: Message) -> None:
            time.sleep(0.2)
            asyncio.get_running_loop().call_later(0.1, later.append, message.key)
            await asyncio.sleep(PATIENCE)

        batch = RecordingBatch(messages("a"), timeout=0.2)
        await CallablePublisher(function).publish(batch)
        assert kinds(batch) == ["TimeoutError"]
        assert not later


class TestCallableCancellation:
    async def test_all_calls_are_cancelled_at_once_however_long_one_takes_to_end(self) -> None:
        cancelled: list[str | None] = []
        may_end = asyncio.Event()

        async def function(message: Message) -> None:
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                cancelled.append(message.key)
                if message.key == "a":
                    await may_end.wait()

        call = asyncio.ensure_future(CallablePublisher(function).publish(RecordingBatch(messages("abcd"), PATIENCE)))
        for _ in range(20):
            await asyncio.sleep(0)
        call.cancel()
        await until(lambda: len(cancelled) == 4)
        assert not call.done()
        may_end.set()
        await asyncio.gather(call, return_exceptions=True)

    async def test_a_function_that_cancels_its_own_task_ends_nobody_elses(self) -> None:
        async def function(message: Message) -> None:
            if message.key == "a":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.sleep(0.01)

        batch = await publish(CallablePublisher(function), messages("abcd"))
        assert kinds(batch)[1:] == ["NoneType"] * 3

    async def test_a_function_that_swallows_it_cannot_go_on_with_the_next_message(self) -> None:
        started: list[Message] = []

        async def stubborn(message: Message) -> None:
            started.append(message)
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                return

        for keys in ("aaa", "abcabc"):
            started.clear()
            batch = RecordingBatch(messages(keys))
            call = asyncio.ensure_future(CallablePublisher(stubborn).publish(batch))
            await until(lambda keys=keys: len(started) == len(set(keys)))
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
            assert len(started) == len(set(keys))

    async def test_no_thread_starts_afterwards(self) -> None:
        started: list[Message] = []

        def function(message: Message) -> None:
            started.append(message)
            time.sleep(0.01)

        publisher = CallablePublisher(function, concurrency=4)
        call = asyncio.ensure_future(publisher.publish(RecordingBatch(messages(["a", "b", "c", None] * 25))))
        await until(lambda: len(started) > 10)
        call.cancel()
        await asyncio.wait([call])
        count = len(started)
        await asyncio.sleep(0.05)
        assert len(started) <= count + 4  # those that had just begun

    async def test_nothing_is_left_behind(self) -> None:
        async def function(message: Message) -> None:
            await asyncio.sleep(PATIENCE)

        call = asyncio.ensure_future(CallablePublisher(function).publish(RecordingBatch(messages("abc"))))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_when_no_time_is_left_in_the_middle_the_rest_is_not_attempted(self) -> None:
        batch = RecordingBatch(messages("aaab"))

        async def function(message: Message) -> None:
            batch.stop_starting()

        await hand_over(CallablePublisher(function, concurrency=1), batch)
        assert kinds(batch) == ["NoneType", "NotAttempted", "NotAttempted", "NotAttempted"]
        assert isinstance(batch.error_of(batch.messages[1]), NotAttempted)
