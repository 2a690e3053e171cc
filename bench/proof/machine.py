"""The machine that a run was made on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import psutil

CPUINFO = Path("/proc/cpuinfo")


def describe() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "cpu": cpu(CPUINFO.read_text() if CPUINFO.exists() else ""),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def cpu(cpuinfo: str) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
