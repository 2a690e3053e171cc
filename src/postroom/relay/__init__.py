"""The relay: fetch, publish, settle."""

from .relay import Relay, Report

__all__ = ["Relay", "Report"]
