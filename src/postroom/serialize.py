"""Payloads to bytes. JSON unless told otherwise; bytes pass through untouched."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from importlib import import_module
from pathlib import PurePath
from typing import Any, Protocol, cast
from uuid import UUID

from .errors import ConfigurationError, SerializationError
from .message import TOMBSTONE

BINARY = "application/octet-stream"
Default = Callable[[Any], object]


class Serializer(Protocol):
    """Turns payloads into bytes. `content_type` says what kind of bytes, and travels with the message."""

    @property
    def content_type(self) -> str: ...

    def dumps(self, payload: Any) -> bytes:
        """The payload as bytes. Called within `add`; whatever it raises keeps the message from being written."""
        ...


class JsonSerializer:
    """Compact UTF-8 JSON.

    Beyond JSON's own: dataclasses and pydantic models (objects), `UUID` and paths (text), `datetime`, `date` and `time`
    (ISO 8601, with or without time zone), `Decimal` (text, so that no digit is lost), enums (their value), sets and
    other collections (arrays; sets sorted where possible). The same holds for the keys of mappings.
    `default` is asked about any other type: it returns something from this list, or raises `TypeError`.
    Binary data, NaN and infinity are refused: JSON has no place for them.
    """

    content_type = "application/json"

    def __init__(self, default: Default | None = None) -> None:
        self._default = default or _refuse
        self._encoder = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=self._convert
        )

    def dumps(self, payload: Any) -> bytes:
        """The payload as JSON, or a `SerializationError` that says what in it cannot be, and where."""
        try:
            return self._encoder.encode(payload).encode()
        except Exception:
            # The encoder knows neither where it failed nor keys that are no strings: this walk is slower and does.
            return self._dumps_carefully(payload)

    def _dumps_carefully(self, payload: Any) -> bytes:
        try:
            return self._encoder.encode(self._plain(payload, "payload")).encode()
        except RecursionError:
            raise SerializationError("the payload refers to itself, or is nested too deep for JSON") from None
        except ValueError as error:
            if isinstance(error, SerializationError):
                raise
            raise SerializationError(f"the payload cannot be written as JSON: {error}") from error

    def _plain(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return self._object(cast(Mapping[Any, Any], value), path)
        if isinstance(value, (list, tuple)):
            return [self._plain(item, f"{path}[{index}]") for index, item in enumerate(cast(Sequence[Any], value))]
        if _is_record(value):
            return {name: self._plain(entry, f"{path}.{name}") for name, entry in _record(value).items()}
        if isinstance(value, (str, int, float, type(None))) and not isinstance(value, Enum):
            return _scalar(value, path)
        return self._plain(self._converted(value, path), path)

    def _converted(self, value: Any, path: str) -> object:
        try:
            return self._convert(value)
        except RecursionError:
            raise
        except Exception as error:
            raise SerializationError(f"{path} cannot be written as JSON: {error}") from error

    def _convert(self, value: Any) -> object:
        for types, convert in _CONVERSIONS:
            if isinstance(value, types):
                return convert(value)
        if _is_record(value):
            return _record(value)
        if _has_model_dump(value):
            return value.model_dump(mode="json")
        return list(cast(Sequence[Any], value)) if isinstance(value, Sequence) else self._default(value)

    def _object(self, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
        plain = {self._key(key, path): self._plain(entry, _entry(path, key)) for key, entry in value.items()}
        if len(plain) < len(value):
            raise SerializationError(f"{path} cannot be written as JSON: two of its keys are the same text")
        return plain

    def _key(self, key: Any, path: str) -> str:
        plain = self._plain(key, f"the key {key!r} of {path}")
        if isinstance(plain, (list, dict)):
            raise SerializationError(f"the key {key!r} of {path} cannot be written as JSON: {_name(key)} is no text")
        return plain if isinstance(plain, str) else json.dumps(plain)


def encode(payload: Any, serializer: Serializer, content_type: str | None = None) -> tuple[bytes, str]:
    """The payload's bytes and their content type. Bytes are not touched; everything else is the serializer's."""
    if payload is TOMBSTONE:
        return b"", content_type or BINARY
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(cast(bytes, payload)), content_type or BINARY
    return _dumps(payload, serializer), content_type or serializer.content_type


def resolve(spec: object = None) -> Serializer:
    """A serializer from configuration: "json" (or nothing), the dotted name of one, or the object itself."""
    if spec is None or spec == "json":
        return JsonSerializer()
    found = _load(spec) if isinstance(spec, str) else spec
    serializer = found() if isinstance(found, type) else found
    if callable(getattr(serializer, "dumps", None)) and isinstance(getattr(serializer, "content_type", None), str):
        return cast(Serializer, serializer)
    raise ConfigurationError(f"{spec!r} is no serializer: it needs a method `dumps(payload)` and a text `content_type`")


def _dumps(payload: Any, serializer: Serializer) -> bytes:
    try:
        data = cast(object, serializer.dumps(payload))
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"{_name(serializer)} cannot serialise a {_name(payload)}: {error}") from error
    if isinstance(data, bytes):
        return data
    raise SerializationError(f"{_name(serializer)}.dumps returned {_name(data)}; it must return bytes")


def _load(name: str) -> object:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"serializer {name!r} cannot be loaded ({error}); write 'json' or a dotted name such as 'shop.wire.Avro'"
        ) from error


def _refuse(value: Any) -> object:
    raise TypeError(f"JSON knows no {_name(value)}; convert it first, or use JsonSerializer(default=…)")


def _refuse_binary(value: Any) -> object:
    raise TypeError(f"JSON has no binary data ({_name(value)}); encode it as text first, or make it the whole payload")


def _decimal(value: Decimal) -> str:
    if value.is_finite():
        return str(value)
    raise ValueError(f"JSON has no {value}; send None or leave it out")


def _sorted(values: Set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


_CONVERSIONS: tuple[tuple[type | tuple[type, ...], Callable[[Any], object]], ...] = (
    (Enum, lambda value: value.value),
    ((UUID, PurePath), str),
    ((datetime, date, time), lambda value: value.isoformat()),
    (Decimal, _decimal),
    ((bytes, bytearray, memoryview), _refuse_binary),
    (Set, _sorted),
    (Mapping, dict),
)


def _scalar(value: str | float | None, path: str) -> str | float | None:
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise SerializationError(f"{path} cannot be written as JSON: the text holds half a character (a surrogate)")
    if isinstance(value, float) and not float("-inf") < value < float("inf"):
        raise SerializationError(f"{path} cannot be written as JSON: JSON has no {value}; send None or leave it out")
    return value


def _is_record(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _record(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _has_model_dump(value: object) -> bool:
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def _entry(path: str, key: object) -> str:
    return f"{path}[{json.dumps(key, ensure_ascii=False) if isinstance(key, str) else repr(key)}]"


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
