"""The publisher and the store of examples/third_party pass the suites, as those of anybody else would have to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from base64 import b64decode
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from lines_publisher import LinesPublisher
from snapshot_store import SnapshotStore

from postroom import ConfigurationError, Message, Outbox, Relay, StoreError, StoreUnavailable, TablesMissing
from postroom.ports import Query, Store
from postroom.stores.memory import MemoryTransaction
from postroom.testing import FakeClock, survive_async
from postroom.testing.publisher_contract import PublisherContract, Received, RejectionContract
from postroom.testing.store_contract import StoreContract

EXAMPLE = Path(__file__).parents[2] / "examples/third_party"


class LineServer:
    """Takes lines and confirms them; refuses some, hangs or hangs up when it is told to."""

    def __init__(self) -> None:
        self.lines: list[Received] = []
        self.refused: Collection[str] = ()
        self.broken = False
        self.well = asyncio.Event()
        self.well.set()
        self.port = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.hang_up()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def hang_up(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while not self.broken and (line := await reader.readline()):
                if not self.well.is_set():
                    await self.well.wait()
                    break  # what came while it hung is thrown away
                writer.write(self._take(line))
                await writer.drain()
        except OSError:
            pass
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    def _take(self, line: bytes) -> bytes:
        fields = json.loads(line)
        id = fields["headers"]["postroom-id"]
        if id in self.refused:
            return b'{"refusal": "not this one"}\n'
        payload = b64decode(fields.pop("payload"))
        self.lines.append(Received(id=id, payload=payload, **fields))
        return b'{"refusal": null}\n'


@pytest.fixture
async def server() -> AsyncIterator[LineServer]:
    server = LineServer()
    await server.start()
    yield server
    await server.stop()


class TestLinesPublisher(PublisherContract, RejectionContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: LineServer) -> None:
        self.server = server

    async def make_publisher(self) -> LinesPublisher:
        return LinesPublisher(f"lines://127.0.0.1:{self.server.port}")

    async def received(self) -> Sequence[Received]:
        return list(self.server.lines)

    async def break_destination(self) -> None:
        self.server.broken = True
        self.server.hang_up()

    async def hang_destination(self) -> None:
        self.server.well.clear()

    async def mend_destination(self) -> None:
        self.server.broken, self.server.refused = False, ()
        self.server.well.set()

    async def reject(self, ids: Collection[str]) -> None:
        self.server.refused = ids


@pytest.mark.parametrize("url", ["lines://localhost", "lines:", "kafka://localhost:7000"])
def test_a_url_that_names_no_line_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="lines://localhost:7000"):
        LinesPublisher(url)


class TestSnapshotStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.url = f"snapshot:{tmp_path}/outbox.json"

    async def make_store(self, clock: FakeClock) -> Store:
        return SnapshotStore(self.url, clock=clock)

    async def make_another(self, store: SnapshotStore, clock: FakeClock) -> Store:
        return store

    async def insert(self, store: SnapshotStore, messages: Sequence[Message]) -> None:
        with store.begin() as transaction:
            for message in messages:
                add(transaction, message)

    async def remove(self, store: SnapshotStore, message: Message) -> None:
        for shelf in (store.tables.hot, store.tables.parked, store.tables.dead):
            shelf.take(message.position)
        store._save()

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[Store]:
        """After each test of the suite, what the file says is what the store said."""
        store = SnapshotStore(self.url, clock=clock)
        await store.open()
        yield store
        await store.close()
        await self.assert_file_says_the_same(store)

    async def assert_file_says_the_same(self, store: SnapshotStore) -> None:
        reopened = SnapshotStore(self.url, clock=store.tables._clock)
        reopened._load()
        assert await reopened.entries(Query(limit=1000)) == await store.entries(Query(limit=1000))
        assert await reopened.holds(limit=1000) == await store.holds(limit=1000)
        assert await reopened.status() == await store.status()


def add(transaction: MemoryTransaction, message: Message) -> None:
    transaction.add(message, message.payload, message.headers, None, message.sequence is not None, None)


async def filled(path: Path, number: int = 5) -> SnapshotStore:
    store = SnapshotStore(f"snapshot:{path}")
    await store.open()
    with store.begin() as transaction:
        Outbox().add_many(transaction, [Message(topic="orders", payload={"n": n}, key="a") for n in range(number)])
    return store


async def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    store = await filled(tmp_path / "outbox.json")
    await store.close()
    arrived: list[bytes] = []
    report = await Relay(SnapshotStore(f"snapshot:{tmp_path}/outbox.json"), lambda m: arrived.append(m.payload)).drain()
    assert (report.delivered, report.pending) == (5, 0)
    assert arrived == [b'{"n":%d}' % n for n in range(5)]


async def test_a_snapshot_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    store = await filled(tmp_path / "outbox.json")
    with pytest.raises(StoreError, match="another process"):
        await SnapshotStore(f"snapshot:{tmp_path}/outbox.json").open()
    await store.close()


async def test_without_leave_to_create_it_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TablesMissing):
        await SnapshotStore(f"snapshot:{tmp_path}/outbox.json").open(create_tables=False)


async def test_a_store_that_is_not_open_takes_no_message(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not open"), SnapshotStore(f"snapshot:{tmp_path}/outbox.json").begin():
        pass


async def test_a_change_that_cannot_be_saved_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await filled(tmp_path / "outbox.json")

    def fail(descriptor: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="the disk is full"), store.begin() as transaction:
        Outbox().add(transaction, "orders", {})
    monkeypatch.undo()
    assert len(await store.entries(Query())) == 5
    await store.close()


async def test_both_together_survive_faults(tmp_path: Path, server: LineServer) -> None:
    store = await filled(tmp_path / "outbox.json", number=40)
    publisher = LinesPublisher(f"lines://127.0.0.1:{server.port}")
    result = await survive_async(store, publisher, received=lambda: [line.id for line in server.lines], seed=3)
    await store.close()
    assert result.ok, result
    assert result.faults


def test_once_installed_they_are_found_by_their_urls(tmp_path: Path) -> None:
    """What an installer would write into site-packages, written by hand: it needs no network."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / "postroom_third_party-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(groups))
    code = (
        "from postroom import Relay\n"
        f"relay = Relay('snapshot:{tmp_path}/outbox.json', 'lines://localhost:7000')\n"
        "print(type(relay.store).__name__)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{EXAMPLE}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("SnapshotStore", 0), done.stderr
