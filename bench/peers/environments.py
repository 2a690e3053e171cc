"""A virtual environment for each system, under `.services/`, built of the versions in `requirements/`."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from tests.services import places
from tests.services.processes import ServerUnavailable, run

from .systems import System

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
OURS = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON", "UV_SYSTEM_PYTHON")
"""Settings of whoever called that must not leak into what is built."""


class NotBuilt(Exception):
    """A system cannot be measured here: why."""


def python_for(system: System) -> Path:
    """The interpreter of its environment, which is built unless it is there and up to date."""
    if system.java and not shutil.which("java"):
        raise NotBuilt("it needs Java, and there is none on the path")
    requirements = REQUIREMENTS / f"{system.driver}.txt"
    if not requirements.exists():
        return Path(sys.executable)  # our own
    folder = places.ROOT / "peers" / system.driver
    with places.locked(f"peers-{system.driver}"):
        if not is_current(folder, requirements):
            _build(folder, requirements)
    return folder / "bin" / "python"


def is_current(folder: Path, requirements: Path) -> bool:
    stamp = folder / "built-of"
    return stamp.exists() and stamp.read_text() == content_of(requirements)


def content_of(requirements: Path) -> str:
    return f"# Python {platform.python_version()}\n{requirements.read_text()}"


def _build(folder: Path, requirements: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    python, environment = folder / "bin" / "python", settings(dict(os.environ))
    print(f"Building an environment of {requirements.name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        run([uv, "venv", "--quiet", "--python", sys.executable, folder], env=environment)
        run([uv, "pip", "sync", "--quiet", "--python", python, requirements], env=environment)
    except (ServerUnavailable, OSError) as error:
        print(error, file=sys.stderr)  # and nowhere else: it may name an index
        raise NotBuilt("it could not be installed") from error
    (folder / "built-of").write_text(content_of(requirements))


def settings(environment: dict[str, str]) -> dict[str, str]:
    """uv does not read pip's settings: a mirror or a certificate that pip was told about holds for both."""
    for ours, theirs in (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("SSL_CERT_FILE", "PIP_CERT")):
        if theirs in environment:
            environment.setdefault(ours, environment[theirs])
    return {name: value for name, value in environment.items() if name not in OURS}
