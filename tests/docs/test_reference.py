"""The reference is complete: every table, column, header, public name and event is in it."""

from __future__ import annotations

import inspect

import postroom
from postroom import events, message
from postroom.stores.schema import define_tables

from .markdown import ROOT


def page(name: str) -> str:
    return (ROOT / "docs/reference" / name).read_text(encoding="utf-8")


def test_every_table_and_column_is_described() -> None:
    text = page("tables.md")
    for table in define_tables().all():
        name = table.name.removeprefix("postroom_")
        assert f"`{name}`" in text or f"## {name}" in text or f", {name}" in text, name
        assert not [column.name for column in table.columns if f"`{column.name}`" not in text and name != "meta"]
    assert all(f"| `{name}` |" in text for name in ("version", "min_compatible", "claim", "epoch"))


def test_every_header_is_described() -> None:
    headers = [value for name, value in vars(message).items() if name.endswith("_HEADER")]
    assert headers
    assert not [header for header in headers if f"| `{header}` |" not in page("headers.md")]


def test_every_public_name_is_described() -> None:
    public = [name for name, value in vars(postroom).items() if inspect.isclass(value)]
    text = page("api.md")
    assert not [name for name in public if f"`{name}" not in text and f"## {name}" not in text]


def test_every_event_is_described() -> None:
    known = [name for name, value in vars(events).items() if inspect.isclass(value) and issubclass(value, events.Event)]
    text = page("api.md")
    assert not [name for name in known if name != "Event" and f"`{name}`" not in text]
