import json
import math
from collections import OrderedDict, deque, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from postroom.errors import ConfigurationError, SerializationError
from postroom.serialize import JsonSerializer, encode, resolve

NAME = UUID("018f3b2e-0000-7000-8000-000000000001")


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Mood(StrEnum):
    GOOD = "good"


class Old(str, Enum):  # noqa: UP042 - how enums of text were written before StrEnum
    STYLE = "style"


@dataclass
class Line:
    price: Any
    tags: set[str] = field(default_factory=set[str])


@dataclass
class Order:
    id: Any
    lines: list[Line]


class Address(BaseModel):
    street: str
    since: date


class Customer(BaseModel):
    name: str
    address: Address
    limit: Decimal


Point = namedtuple("Point", "x y")


def dumps(payload: Any) -> str:
    return JsonSerializer().dumps(payload).decode()


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"a": 1, "b": [True, None, 1.5]}, '{"a":1,"b":[true,null,1.5]}'),
        ("text", '"text"'),
        ("Grüße 🎉", '"Grüße 🎉"'),
        (None, "null"),
        (NAME, f'"{NAME}"'),
        (datetime(2024, 5, 1, 12, 30, tzinfo=UTC), '"2024-05-01T12:30:00+00:00"'),
        (datetime(2024, 5, 1, 12, 30), '"2024-05-01T12:30:00"'),
        (date(2024, 5, 1), '"2024-05-01"'),
        (time(12, 30), '"12:30:00"'),
        (Decimal("19.90"), '"19.90"'),
        (Colour.RED, '"red"'),
        (Size.SMALL, "1"),
        (Mood.GOOD, '"good"'),
        (Old.STYLE, '"style"'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ((1, 2), "[1,2]"),
        (Point(1, 2), "[1,2]"),
        (deque([1]), "[1]"),
        (range(3), "[0,1,2]"),
        (PurePosixPath("/a/b"), '"/a/b"'),
        (MappingProxyType({"a": NAME}), f'{{"a":"{NAME}"}}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (Order(NAME, [Line(Decimal(1), {"x"})]), f'{{"id":"{NAME}","lines":[{{"price":"1","tags":["x"]}}]}}'),
        (
            Customer(name="A", address=Address(street="S", since=date(2024, 5, 1)), limit=Decimal("1.5")),
            '{"name":"A","address":{"street":"S","since":"2024-05-01"},"limit":"1.5"}',
        ),
        ([RootModel[list[int]]([1, 2])], "[[1,2]]"),
    ],
)
def test_payloads_become_compact_json(payload: Any, expected: str):
    assert dumps(payload) == expected


@pytest.mark.parametrize(
    ("key", "written"),
    [
        (NAME, str(NAME)),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        (Colour.RED, "red"),
        (Size.SMALL, "1"),
        (Mood.GOOD, "good"),
        (Old.STYLE, "style"),
        (date(2024, 5, 1), "2024-05-01"),
        (Decimal("1.0"), "1.0"),
    ],
)
def test_keys_that_are_no_text_become_text_alone_or_beside_others(key: Any, written: str):
    assert json.loads(dumps({key: 0})) == {written: 0}
    assert json.loads(dumps({key: {Colour.RED: Decimal(1)}, NAME: 0}))[written] in (0, {"red": "1"})


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append({"again": loop})
    return loop


class Own:
    pass


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (Own(), "payload cannot be written as JSON: JSON knows no test_serialize.Own; convert it first"),
        ({"items": [0, 1, Line(Own())]}, 'payload["items"][2].price cannot be written as JSON: JSON knows no'),
        (Order(1, [Line(b"raw")]), "payload.lines[0].price cannot be written as JSON: JSON has no binary data (bytes)"),
        ({"a": bytearray(b"x")}, 'payload["a"] cannot be written as JSON: JSON has no binary data (bytearray)'),
        ({"a": math.nan}, 'payload["a"] cannot be written as JSON: JSON has no nan'),
        ([math.inf], "payload[0] cannot be written as JSON: JSON has no inf"),
        ({"a": [Decimal("NaN")]}, 'payload["a"][0] cannot be written as JSON: JSON has no NaN'),
        ({"a": {7: "\ud800"}}, 'payload["a"][7] cannot be written as JSON: the text holds half a character'),
        ({"a": {(1, 2): 3}}, 'the key (1, 2) of payload["a"] cannot be written as JSON: tuple is no text'),
        ({"a": {Own: 3}}, 'of payload["a"] cannot be written as JSON: JSON knows no type'),
        ({NAME: 1, str(NAME): 2}, "payload cannot be written as JSON: two of its keys are the same text"),
        ({"a": timedelta(1)}, 'payload["a"] cannot be written as JSON: JSON knows no datetime.timedelta'),
        ({"a": Order}, 'payload["a"] cannot be written as JSON: JSON knows no type'),
        ({"a": Customer}, 'payload["a"] cannot be written as JSON: JSON knows no pydantic'),
        ({"a": 10**5000}, "the payload cannot be written as JSON: Exceeds the limit"),
        (itself(), "the payload refers to itself"),
    ],
)
def test_what_cannot_be_written_is_named_with_its_place(payload: Any, message: str):
    with pytest.raises(SerializationError) as caught:
        dumps(payload)
    assert message in str(caught.value).replace("unit.test_serialize", "test_serialize").replace("tests.", "")


def test_a_model_that_fails_to_dump_is_named_with_its_place():
    class Broken:
        def model_dump(self, mode: str) -> Mapping[str, object]:
            raise RuntimeError("out of order")

    with pytest.raises(SerializationError, match=r'^payload\["a"\] cannot be written as JSON: out of order'):
        dumps({"a": Broken()})


def test_users_can_teach_it_their_own_types():
    serializer = JsonSerializer(default=lambda value: value.total_seconds())
    assert serializer.dumps({"a": timedelta(minutes=1), NAME: 0}) == f'{{"a":60.0,"{NAME}":0}}'.encode()
    with pytest.raises(SerializationError, match=r'^payload\["a"\].*no attribute'):
        serializer.dumps({"a": Own()})


def test_a_type_that_converts_to_itself_for_ever_does_not_hang():
    serializer = JsonSerializer(default=lambda value: value)
    for payload in (Own(), {Own(): 1}):
        with pytest.raises(SerializationError):
            serializer.dumps(payload)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(plain)
def test_plain_data_reads_back_the_same(payload: Any):
    assert json.loads(JsonSerializer().dumps(payload)) == payload


@given(plain)
def test_the_careful_way_writes_the_same_as_the_fast_one(payload: Any):
    fast = json.loads(JsonSerializer().dumps(payload))
    careful = json.loads(JsonSerializer().dumps({NAME: payload}))
    assert careful == {str(NAME): fast}


@pytest.mark.parametrize("payload", [b"\x00raw", bytearray(b"\x00raw"), memoryview(b"\x00raw")])
def test_bytes_are_not_touched(payload: Any):
    assert encode(payload, JsonSerializer()) == (b"\x00raw", "application/octet-stream")
    assert encode(payload, JsonSerializer(), "image/png") == (b"\x00raw", "image/png")


def test_everything_else_carries_the_content_type_of_its_serializer_unless_told_otherwise():
    assert encode({"a": 1}, JsonSerializer()) == (b'{"a":1}', "application/json")
    assert encode("text", JsonSerializer()) == (b'"text"', "application/json")
    assert encode({}, JsonSerializer(), "application/vnd.shop+json") == (b"{}", "application/vnd.shop+json")


class Shouting:
    content_type = "text/plain"

    def dumps(self, payload: Any) -> bytes:
        return str(payload).upper().encode()


class Careless:
    content_type = "text/plain"

    def dumps(self, payload: Any) -> Any:
        return payload["text"]


def test_a_serializer_can_be_the_users_own():
    assert encode("hello", resolve(Shouting())) == (b"HELLO", "text/plain")
    assert encode("hello", resolve(Shouting)) == (b"HELLO", "text/plain")


def test_a_serializer_that_returns_no_bytes_is_an_error_that_names_it():
    with pytest.raises(SerializationError, match=r"Careless\.dumps returned str; it must return bytes"):
        encode({"text": "x"}, Careless())


def test_a_serializer_that_raises_is_an_error_that_names_it_and_the_type():
    with pytest.raises(SerializationError, match=r"Careless cannot serialise a dict: 'text'"):
        encode({}, Careless())


@pytest.mark.parametrize(
    "spec", [None, "json", "postroom.serialize.JsonSerializer", "postroom.serialize:JsonSerializer", JsonSerializer()]
)
def test_json_can_be_asked_for_in_many_ways(spec: object):
    assert isinstance(resolve(spec), JsonSerializer)


@pytest.mark.parametrize("spec", ["xml", "not_there.Serializer", "json.nothing", "json.dumps", "", ".x", 5, object()])
def test_what_is_no_serializer_is_refused(spec: object):
    with pytest.raises(ConfigurationError, match="serializer"):
        resolve(spec)


def test_a_set_that_cannot_be_sorted_is_written_all_the_same():
    assert sorted(json.loads(dumps({"a", 1})), key=str) == [1, "a"]


def test_an_error_with_a_place_reaches_the_caller_of_encode():
    with pytest.raises(SerializationError, match=r'^payload\["a"\] cannot'):
        encode({"a": Own()}, JsonSerializer())
