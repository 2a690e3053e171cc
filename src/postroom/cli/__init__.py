"""The command line: it reads flags, calls the desk or a relay, and prints."""

from .program import main

__all__ = ["main"]
