"""What it was measured on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    return {
        "cores": psutil.cpu_count(),
        "cpu": processor(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }


def processor() -> str:
    """As Linux names it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
