"""What can be a task, and what is refused."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from postroom import ConfigurationError, Relay, Retry
from tests.tasks.workshop import Email, Workshop


def no_payload() -> None: ...
def too_many(payload: Any, context: Any, more: Any) -> None: ...
def keyword(payload: Any, *, more: Any) -> None: ...
def generator(payload: Any) -> Any:
    yield payload


async def async_generator(payload: Any) -> Any:
    yield payload


def unresolved(payload: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_payload, "must take (payload) or (payload, context)"),
        (too_many, "must take (payload) or (payload, context)"),
        (keyword, "must take (payload) or (payload, context)"),
        (generator, "is a generator: calling it would run nothing"),
        (async_generator, "is a generator: calling it would run nothing"),
        (unresolved, "types must be defined at the top of a module"),
        (Email, "is a class; give a function"),
        ("text", "is no function"),
        (threading.Lock, "does not tell what it takes"),
    ],
)
def test_functions_that_cannot_be_tasks_are_refused(workshop: Workshop, function: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        workshop.tasks.task("t")(function)
    assert "task 't'" in str(caught.value)
    assert words in str(caught.value)


def test_two_tasks_with_one_id_are_refused(workshop: Workshop) -> None:
    workshop.tasks.task("t")(lambda payload: None)
    with pytest.raises(ConfigurationError, match=r"there is a task 't' already, tests\.tasks\.test_registering"):
        workshop.tasks.task("t")(no_payload)


@pytest.mark.parametrize("id", ["", None, 1, "x" * 256])
def test_ids_are_texts_that_fit(workshop: Workshop, id: Any) -> None:
    with pytest.raises(ConfigurationError, match="the id of a task"):
        workshop.tasks.task(id)(lambda payload: None)


@pytest.mark.parametrize("options", [{"timeout": "0s"}, {"timeout": "soon"}, {"retry": "sometimes"}])
def test_options_that_cannot_work_are_refused(workshop: Workshop, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        workshop.tasks.task("t", **options)(lambda payload: None)


def test_a_retry_is_at_a_time_or_after_a_delay() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        Retry(at=datetime.now(UTC), delay=1)
    with pytest.raises(ConfigurationError, match="no time zone"):
        Retry(at=datetime(2030, 1, 1))


def test_a_relay_without_anything_to_do_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="or tasks to run"):
        Relay(workshop.store)


def test_modules_can_be_discovered(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match=r"'no\.such\.module' with tasks cannot be imported"):
        workshop.tasks.discover("no.such.module")
    assert workshop.tasks.discover("json") is workshop.tasks


async def test_partials_and_objects_can_be_tasks(workshop: Workshop) -> None:
    class Callable:
        def __call__(self, payload: int) -> None:
            workshop.done.append(payload)

    def add(amount: int, payload: int) -> None:
        workshop.done.append(amount + payload)

    one = workshop.tasks.task("one")(Callable())
    other = workshop.tasks.task("other")(partial(add, 10))
    workshop.schedule(one, 1)
    workshop.schedule(other, 1)
    await workshop.drain()
    assert sorted(workshop.done) == [1, 11]
