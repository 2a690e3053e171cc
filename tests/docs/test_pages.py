"""Pages lead to pages that exist, and what they show as code is code that works.

Every `python` block compiles. In `docs/tutorial` and `docs/how-to` the blocks of a page are one program and are
executed (see `run_page.py`), or written to the file that a block names; a block marked `python no-run` is a fragment
that is only compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from .markdown import ROOT, anchors, blocks, links, pages

RUNNER = Path(__file__).with_name("run_page.py")
PAGES = pages()
PROGRAMS = [page for page in PAGES if page.parts[:2] in (("docs", "tutorial"), ("docs", "how-to"))]


def text_of(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def problem_with(target: str, page: Path) -> str | None:
    if "://" in target or target.startswith("mailto:"):
        return None
    place, _, anchor = unquote(target).partition("#")
    file = (ROOT / page).parent / place if place else ROOT / page
    if not file.exists():
        return f"{target}: there is no such file"
    if anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
        return f"{target}: there is no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    problems = [problem for target in links(text_of(page)) if (problem := problem_with(target, page))]
    assert not problems


def test_every_page_can_be_reached_from_the_index() -> None:
    seen, todo = set[Path](), [Path("docs/index.md")]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in links(text_of(page)):
            file = ((ROOT / page).parent / target.partition("#")[0]).resolve()
            if "://" not in target and file.is_file() and file.is_relative_to(ROOT):
                todo.append(file.relative_to(ROOT))
    assert not set(PAGES) - seen


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_python_block_compiles(page: Path) -> None:
    for block in blocks(text_of(page)):
        if block.info.split(" ")[0] == "python":
            compile("\n" * (block.line - 1) + block.text, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A misspelt mark would silently run nothing."""
    shells = {"sh", "sh run", "sql", "sql postgresql", "sql mysql"}
    known = {"", "python", "python no-run", "text", "text output", "toml", "json", "ini", *shells}
    infos = {block.info for block in blocks(text_of(page))}
    assert {info for info in infos if not re.fullmatch(r"python \w+\.py", info)} <= known


@pytest.mark.parametrize("page", PROGRAMS, ids=str)
def test_what_a_page_shows_works(page: Path, tmp_path: Path) -> None:
    folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "error",
        "PYTEST_ADDOPTS": "-o asyncio_default_fixture_loop_scope=function",  # or pytest-asyncio warns
    }
    command = [sys.executable, str(RUNNER), str(ROOT / page)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
