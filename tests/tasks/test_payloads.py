"""What tasks are given: payloads, and those that are not what they should be."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from postroom import Fixed, SerializationError
from tests.tasks.workshop import Email, Workshop


class Model(BaseModel):
    amount: Decimal
    tags: list[str] = []


class Parcel(TypedDict):
    weight: int
    to: str


@pytest.mark.parametrize(
    ("annotation", "given", "got"),
    [
        (Email, Email("a"), Email("a")),
        (Model, Model(amount=Decimal("1.10")), Model(amount=Decimal("1.10"))),
        (Parcel, {"weight": 1, "to": "x"}, {"weight": 1, "to": "x"}),
        (list[Email], [Email("a")], [Email("a")]),
        (dict, {"a": [1]}, {"a": [1]}),
        (list, [1], [1]),
        (str, "ü", "ü"),
        (int, 1, 1),
        (float, 1, 1),
        (bool, True, True),
        (None, None, None),
        (Any, [None], [None]),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (int | None, None, None),
    ],
)
async def test_the_payload_is_what_the_annotation_says(
    workshop: Workshop, annotation: Any, given: Any, got: Any
) -> None:
    def run(payload: Any) -> None:
        workshop.done.append(payload)

    run.__annotations__["payload"] = annotation
    workshop.schedule(workshop.tasks.task("t")(run), given)
    await workshop.drain()
    assert workshop.done == [got]


@pytest.mark.parametrize(
    ("annotation", "given", "words"),
    [
        (Email, {"subject": "x"}, "the payload is no Email: to: Field required"),
        (Model, {"amount": "x"}, "amount: Input should be a valid decimal"),
        (Parcel, {"weight": "heavy", "to": ""}, "weight: Input should be a valid integer"),
        (int, True, "the payload is a bool, and should be int"),
        (dict, [], "the payload is a list, and should be dict"),
        (Any, b"{", "the payload is no JSON"),
    ],
)
async def test_a_payload_that_does_not_validate_is_held_with_the_reason(
    workshop: Workshop, annotation: Any, given: Any, words: str
) -> None:
    def run(payload: Any) -> None:
        workshop.done.append(payload)

    run.__annotations__["payload"] = annotation
    task = workshop.tasks.task("t", retry=Fixed("1s"))(run)
    message = workshop.schedule(task, given, key="k")
    report = await workshop.drain()
    entry = await workshop.store.entry(message.id)
    assert (report.dead, report.held, workshop.done) == (1, 1, [])
    assert entry is not None
    assert entry.reason == "blocked"
    assert words in str(entry.error)


async def test_a_secret_in_a_payload_is_not_in_the_error(workshop: Workshop) -> None:
    @workshop.tasks.task("t")
    def run(payload: Parcel) -> None: ...

    message = workshop.schedule(run, {"weight": "hunter2", "to": ""})
    await workshop.drain()
    entry = await workshop.store.entry(message.id)
    assert entry is not None
    assert "hunter2" not in str(entry.error)


def test_a_payload_that_cannot_be_written_is_refused_at_once(workshop: Workshop) -> None:
    task = workshop.tasks.task("t")(lambda payload: None)
    with pytest.raises(SerializationError):
        workshop.schedule(task, object())
