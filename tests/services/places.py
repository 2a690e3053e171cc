"""Where servers live: `.services/` in the project, and the locks that let only one process at a time change it."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.processes import ServerUnavailable

ROOT = Path(__file__).resolve().parents[2] / ".services"
CERTIFICATES = Path(__file__).resolve().parent / "certificates"
"""They are valid for a hundred years. `server.pem`, with its key, is signed by `ca.pem`, and not by `other.pem`."""


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Within, for one process at a time. The lock goes when the process does, however that ends."""
    ROOT.mkdir(exist_ok=True)
    with open(ROOT / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Account:
    """Whose rights a server runs with: our own, or, as servers refuse root, the first of these that there is."""

    names: tuple[str, ...]

    @property
    def rights(self) -> dict[str, Any]:
        """What `subprocess` is to be told."""
        if os.geteuid() != 0:
            return {}
        user = self._user()
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def own(self, folder: Path) -> None:
        if os.geteuid() == 0:
            user = self._user()
            os.chown(folder, user.pw_uid, user.pw_gid)

    def reaches(self, folder: Path) -> bool:
        return subprocess.run(["test", "-w", folder], cwd="/", check=False, **self.rights).returncode == 0

    def _user(self) -> pwd.struct_passwd:
        for name in self.names:
            with suppress(KeyError):
                return pwd.getpwnam(name)
        raise ServerUnavailable(f"it refuses root, and none of these accounts is here: {', '.join(self.names)}")


OUR_OWN = Account(("root",))
"""For servers that do not refuse root, and may lie where only we can read."""


def settle(name: str, account: Account) -> Path:
    """A server's folder, its account's own: a link to a temporary one if the account cannot reach the project's."""
    folder = ROOT / name
    if not folder.exists():
        folder.unlink(missing_ok=True)  # a link to what has been cleaned away
        folder.mkdir(parents=True)
    account.own(folder)
    if not account.reaches(folder.resolve()):
        shutil.rmtree(folder)
        folder.symlink_to(tempfile.mkdtemp(prefix=f"postroom-{name}-"))
        account.own(folder)
    return folder.resolve()


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A path to fill, which becomes `folder` at the end: a kill on the way leaves nothing half done behind."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    partial.rename(folder)
