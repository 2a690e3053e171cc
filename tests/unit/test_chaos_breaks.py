"""Engines that are broken on purpose are broken: what they replace is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chaos.breaks import BREAKS, replace

APPLY = """
from types import SimpleNamespace
from chaos.breaks import BREAKS
from postroom.ports import Fetched, Store

assert hasattr(Store, "fetch") and "horizon" in Fetched._fields
BREAKS[{name!r}].apply(SimpleNamespace(fetch=None), SimpleNamespace(features=None))
"""


@pytest.mark.parametrize("name", BREAKS)
def test_each_finds_what_it_breaks(name: str) -> None:
    """In a process of its own: it is broken from then on."""
    subprocess.run([sys.executable, "-c", APPLY.format(name=name)], check=True, timeout=60)


def test_what_is_not_there_cannot_be_broken() -> None:
    class Engine:
        pass

    with pytest.raises(AttributeError, match="Engine has no gear to break"):
        replace(Engine, gear=None)
