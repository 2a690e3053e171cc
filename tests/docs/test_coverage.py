"""`docs/explanation` names only tests that exist, and the coverage page every item that we set out to cover."""

from __future__ import annotations

import re

import pytest

from .markdown import ROOT

MISSION = [
    *(f"OK-{number}" for number in range(1, 21)),
    *(f"PP-{number}" for number in range(1, 37)),
    *(f"KB-{number}" for number in range(1, 51)),
    *(f"KB-F{number}" for number in range(1, 11)),
    *(f"FS-{number}" for number in range(1, 20)),
    *(f"BR-{number}" for number in range(1, 10)),
    *(f"N-{number}" for number in range(1, 23)),
]
STATES = ("done", "partly", "planned")
ROW = re.compile(r"^\| (?P<id>[A-Z]+-F?\d+) \|(?P<cells>.*)\|$", re.MULTILINE)
NAMED = re.compile(r"`(test_\w+|Test\w+)`")
PLACE = re.compile(r"`((?:src/|tests/|docs/|examples/)?[\w./-]+\.(?:py|md))`")
EXPLANATION = ROOT / "docs/explanation"


def coverage() -> dict[str, list[str]]:
    text = (EXPLANATION / "coverage.md").read_text(encoding="utf-8")
    return {row["id"]: [cell.strip() for cell in row["cells"].split("|")] for row in ROW.finditer(text)}


def known_tests() -> set[str]:
    """Functions, classes and files of tests, those of the contract suites included."""
    known: set[str] = set()
    for folder in ("tests", "src/postroom/testing"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            known.add(file.stem)
            known.update(re.findall(r"^\s*(?:async )?def (test_\w+)", text, re.MULTILINE))
            known.update(re.findall(r"^(?:class )?(Test\w+)\b", text, re.MULTILINE))
    return known


def test_every_item_of_the_mission_has_a_row_and_no_other() -> None:
    assert list(coverage()) == MISSION


def test_every_item_has_a_state_and_what_is_done_has_a_place_and_a_test() -> None:
    for id, (_, state, where, tests) in coverage().items():
        assert state in STATES, id
        if state == "done":
            assert where, id
            assert NAMED.search(tests), id


@pytest.mark.parametrize("page", sorted(path.name for path in EXPLANATION.glob("*.md")))
def test_every_test_that_is_named_exists(page: str) -> None:
    named = set(NAMED.findall((EXPLANATION / page).read_text(encoding="utf-8")))
    assert not named - known_tests()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/explanation/coverage.md"])
def test_every_file_that_is_named_exists(page: str) -> None:
    named = PLACE.findall((ROOT / page).read_text(encoding="utf-8"))
    places = [ROOT, ROOT / "src/postroom", ROOT / "tests", ROOT / "docs"]
    assert not [name for name in named if not any((place / name).exists() for place in places)]
