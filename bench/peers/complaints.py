"""What went wrong, in words that may be published: without addresses, and without the folders of whoever measured."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
ADDRESS = re.compile(r"[a-zA-Z][\w+.-]*://[^\s'\"<>()]*")
LONGEST = 300


def complaint(error: BaseException) -> str:
    text = ADDRESS.sub("(an address)", " ".join(str(error).split()))
    for folder, short in folders().items():
        text = text.replace(folder, short)
    return text[:LONGEST]


def folders() -> dict[str, str]:
    """The longest first: one may be within another."""
    known = {str(PROJECT): ".", str(Path.home()): "~", tempfile.gettempdir(): "(a temporary folder)"}
    return {folder: known[folder] for folder in sorted(known, key=len, reverse=True) if folder != "/"}
