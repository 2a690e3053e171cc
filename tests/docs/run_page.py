"""Run a page: `python run_page.py PAGE` executes its blocks in order, in the current folder.

`python` blocks share one namespace; a block that has a file's name, such as `python test_shop.py`, is written to that
file; the lines of `sh run` blocks are commands that must succeed. What a `text output` block shows must be among the
lines that were printed before it and after the one before.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from markdown import Block, blocks  # type: ignore[import-not-found]


def run(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.info == "python":
            printed += run_python(block, page, namespace)
        elif block.info.startswith("python ") and block.info.endswith(".py"):
            Path(block.info.removeprefix("python ")).write_text(block.text, encoding="utf-8")
        elif block.info == "sh run":
            printed += run_commands(block)
        elif block.info == "text output":
            printed = printed[find(block, printed) :]


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, namespace)
    return output.getvalue()


def run_commands(block: Block) -> str:
    commands = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
    return "".join(subprocess.run(line, shell=True, check=True, stdout=-1, text=True).stdout for line in commands)


def find(block: Block, printed: str) -> int:
    """Where the text of the block ends in what was printed."""
    start = printed.find(block.text)
    if start < 0:
        sys.exit(f"line {block.line}: expected\n{block.text}\nin what was printed:\n{printed}")
    return start + len(block.text)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
