"""The README's example and everything under examples/ does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .markdown import ROOT, blocks

OUTPUT = {
    "quickstart.py": """\
orders order-1 OrderPlaced {"id":1,"total":42}
delivered 1, pending 0
""",
    "refused_message.py": """\
order-2 is on hold after 3 attempts, 1 waiting: MessageRejected: no such address
delivered order-2 OrderPlaced
delivered order-2 OrderPaid
""",
    "own_publisher.py": '"THE POST IS HERE"\n',
}


def run(code: Path, folder: Path) -> str:
    command = [sys.executable, "-W", "error", str(code)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme_example() -> str:
    (example,) = [block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.info == "python"]
    return example.text


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    assert readme_example() == (ROOT / "examples/quickstart.py").read_text(encoding="utf-8")


def test_the_readmes_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code = tmp_path / "readme.py"
    code.write_text(readme_example(), encoding="utf-8")
    assert run(code, tmp_path) == OUTPUT["quickstart.py"]
    assert f"```text\n{OUTPUT['quickstart.py']}```" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_example_is_known_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("name", sorted(OUTPUT))
def test_an_example_prints_what_it_should(name: str, tmp_path: Path) -> None:
    assert run(ROOT / "examples" / name, tmp_path).endswith(OUTPUT[name])
