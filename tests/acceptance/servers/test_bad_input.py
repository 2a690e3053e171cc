"""What others get wrong: passwords, rights, settings of the database, rows written by hand, odd keys, huge payloads."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg
import pymysql
import pytest

from postroom import Desk, Message, MessageRejected, Outbox, PayloadTooLarge, Relay, StoreError, StoreUnavailable
from postroom.message import new_id, slot_of
from postroom.ports import Hold, State
from postroom.publishers.memory import MemoryPublisher
from postroom.stores.sql_rows import UNREADABLE_HEADERS
from postroom.testing.connection_contract import LOOKALIKES
from tests.acceptance.servers.conftest import Named, emptied
from tests.acceptance.servers.crowd import Crowd
from tests.acceptance.servers.database import TABLES, TOPIC, Database
from tests.acceptance.servers.deliveries import (
    Complaints,
    commit_order,
    duplicates,
    first_versions,
    ids,
    relay_running,
)
from tests.acceptance.servers.hands import ConnectionHand, Hand
from tests.acceptance.servers.throwaway import throwaway
from tests.waiting import eventually

KEYS = [f"order-{number}" for number in range(20)]
SETTINGS: dict[str, Any] = {"lease_ttl": "2s", "publish_timeout": "500ms", "batch_size": 20, "create_tables": False}
CREATING: dict[str, Any] = {**SETTINGS, "create_tables": True}
SECRET = "hunter2"
OTHER_DRIVERS = {True: "postgresql+psycopg", False: "mysql+aiomysql"}
MEGABYTE = 1024 * 1024


def add(database: Database, count: int, first: int = 1, keys: Sequence[str] = KEYS) -> list[Message]:
    """Of each key so many messages, numbered."""
    versions = range(first, first + count)
    messages = [Message(topic=TOPIC, payload={"version": n}, key=key) for n in versions for key in keys]
    with database.connection() as connection:
        added = Outbox().add_many(connection, messages)
        connection.commit()
    return added


def all_arrive(database: Database, publisher: MemoryPublisher, count: int) -> None:
    """In order, each once, and nothing is left."""
    eventually(lambda: len(set(ids(publisher))) >= count * len(KEYS), otherwise=lambda: len(publisher.messages))
    eventually(lambda: database.count("outbox") == 0)
    assert first_versions(publisher.messages) == {key: list(range(1, count + 1)) for key in KEYS}
    assert duplicates(ids(publisher)) == 0


def ask_desk(url: str, question: Callable[[Desk], Any]) -> Any:
    async def ask() -> Any:
        async with Desk(url) as desk:
            return await question(desk)

    return asyncio.run(ask())


# --- a role of its own, with a password, that may do everything with our tables


@dataclass(frozen=True)
class Role:
    database: Database
    name: str

    @property
    def url(self) -> str:
        return self.url_with()

    def url_with(self, **parts: Any) -> str:
        chosen = {"username": self.name, "password": SECRET, **parts}
        return self.database.parts.set(**chosen).render_as_string(hide_password=False)

    def create(self) -> None:
        if self.database.is_postgresql:
            self._run(f"CREATE ROLE {self.name} LOGIN PASSWORD '{SECRET}'")
            self._run(f"GRANT USAGE ON SCHEMA public TO {self.name}")
            self._run(f"GRANT ALL ON SEQUENCE postroom_bell TO {self.name}")
        else:
            self._run(f"CREATE USER {self.name} IDENTIFIED BY '{SECRET}'")
        self.let_write()

    def drop(self) -> None:
        if self.database.is_postgresql:
            self._run(f"DROP OWNED BY {self.name}")
            self._run(f"DROP ROLE {self.name}")
        else:
            self._run(f"DROP USER {self.name}")

    def shut_out(self) -> None:
        """A server that trusts everybody asks for no password, but has roles that may not log in."""
        self._alter("NOLOGIN", "IDENTIFIED BY 'another'")

    def let_in(self) -> None:
        self._alter("LOGIN", f"IDENTIFIED BY '{SECRET}'")

    def let_write(self) -> None:
        for table in TABLES.all():
            self.grant("ALL", table.name)

    def let_only_read(self) -> None:
        """Sessions that there are go on as before: end them. So it is with all settings and rights of a database."""
        if self.database.is_postgresql:
            self._run(f"{self._all_of_it} SET default_transaction_read_only = on")
        else:
            self._run(f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {self.name}")
            self._run(f"GRANT SELECT ON {self._all_of_it} TO {self.name}")

    def let_write_again(self) -> None:
        if self.database.is_postgresql:
            self._run(f"{self._all_of_it} RESET default_transaction_read_only")
        else:
            self._run(f"GRANT ALL ON {self._all_of_it} TO {self.name}")

    @property
    def _all_of_it(self) -> str:
        name = self.database.parts.database
        return f'ALTER DATABASE "{name}"' if self.database.is_postgresql else f"`{name}`.*"

    def grant(self, right: str, table: str) -> None:
        self._run(f"GRANT {right} ON {table} TO {self.name}")

    def revoke(self, right: str, table: str) -> None:
        self._run(f"REVOKE {right} ON {table} FROM {self.name}")

    def _alter(self, on_postgresql: str, on_mariadb: str) -> None:
        is_postgresql = self.database.is_postgresql
        self._run(
            f"ALTER ROLE {self.name} {on_postgresql}" if is_postgresql else f"ALTER USER {self.name} {on_mariadb}"
        )

    def _run(self, statement: str) -> None:
        self.database.ask(statement)


@pytest.fixture
def role(database: Database) -> Iterator[Role]:
    seed(database)
    role = Role(database, f"clerk_{secrets.token_hex(4)}")
    role.create()
    try:
        yield role
    finally:
        role.drop()


def seed(database: Database) -> None:
    """The rows that a relay needs: a role that may not write could not make them."""
    with relay_running(database, MemoryPublisher()):
        pass


# --- who is not let in


def through(driver: str, database: Database, url: str) -> str:
    if driver == "usual driver":
        return url
    return url.replace(database.parts.drivername, OTHER_DRIVERS[database.is_postgresql], 1)


def nobody(role: Role) -> str:
    return role.url_with(username="nobody_known")


def nowhere(role: Role) -> str:
    return role.url_with(database="no_such_database")


def shut_out(role: Role) -> str:
    role.shut_out()
    return role.url


DRIVERS = pytest.mark.parametrize("driver", ["usual driver", "other driver"])
WRONG = pytest.mark.parametrize("wrong", [nobody, nowhere, shut_out])


@WRONG
@DRIVERS
def test_a_relay_that_is_not_let_in_ends_with_an_error_that_says_where_and_shows_no_password(
    role: Role, wrong: Callable[[Role], str], driver: str
) -> None:
    """Waiting would not help, and whoever deploys it must see that at once."""
    url = through(driver, role.database, wrong(role))
    with pytest.raises(StoreError) as caught:
        asyncio.run(run_for_a_while(Relay(url, MemoryPublisher())))
    assert not isinstance(caught.value, StoreUnavailable)
    assert_clear(role, str(caught.value))


async def run_for_a_while(relay: Relay) -> None:
    async with asyncio.timeout(20):
        await relay.run()


def assert_clear(role: Role, error: str) -> None:
    parts = role.database.parts
    assert f"{parts.host}:{parts.port}" in error
    assert any(name in error for name in (role.name, "nobody_known", "no_such_database"))
    assert any(words in error for words in ("does not exist", "not permitted", "denied", "Unknown database"))
    assert SECRET not in error


@WRONG
def test_the_command_line_says_so_in_one_line(role: Role, wrong: Callable[[Role], str]) -> None:
    command = [sys.executable, "-m", "postroom", "--store", wrong(role), "status"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 3
    assert_clear(role, answer.stderr)
    assert len(answer.stderr.splitlines()) == 1


def test_a_running_relay_that_is_shut_out_says_so_and_goes_on_once_it_is_let_in(role: Role) -> None:
    database, publisher, complaints = role.database, MemoryPublisher(), Complaints()
    with relay_running(database, publisher, complaints, url=role.url, **SETTINGS):
        add(database, 5)
        all_arrive(database, publisher, 5)
        role.shut_out()
        database.end_sessions()
        add(database, 5, first=6)
        eventually(lambda: any(role.name in error for error in complaints.errors), otherwise=lambda: complaints.errors)
        role.let_in()
        all_arrive(database, publisher, 10)
        eventually(lambda: complaints.recoveries)
    assert SECRET not in "".join(complaints.errors)


# --- who may not write


@contextmanager
def read_only(role: Role) -> Iterator[None]:
    """As a standby is, or a role that was given too little."""
    role.let_only_read()
    role.database.end_sessions()
    try:
        yield
    finally:
        role.let_write_again()


def test_a_relay_whose_database_turns_read_only_says_so_and_goes_on_once_it_is_writable(role: Role) -> None:
    database, publisher, complaints = role.database, MemoryPublisher(), Complaints()
    with relay_running(database, publisher, complaints, url=role.url, **SETTINGS):
        add(database, 5)
        all_arrive(database, publisher, 5)
        with read_only(role):
            eventually(lambda: any(map(is_about_writing, complaints.errors)), otherwise=lambda: complaints.errors)
        add(database, 5, first=6)
        all_arrive(database, publisher, 10)
        eventually(lambda: complaints.recoveries)


def is_about_writing(error: str) -> bool:
    return "read-only transaction" in error or "command denied" in error


def test_a_relay_that_starts_on_a_read_only_database_delivers_nothing_until_it_is_writable(role: Role) -> None:
    database, publisher, complaints = role.database, MemoryPublisher(), Complaints()
    add(database, 2)
    with ExitStack() as stack:
        with read_only(role):
            stack.enter_context(relay_running(database, publisher, complaints, url=role.url, **SETTINGS))
            eventually(lambda: any(map(is_about_writing, complaints.errors)), otherwise=lambda: complaints.errors)
            assert publisher.messages == []
        all_arrive(database, publisher, 2)


# --- who may not do one thing


@pytest.mark.parametrize(
    ("right", "table"),
    [
        ("SELECT", "postroom_outbox"),
        ("DELETE", "postroom_outbox"),
        ("UPDATE", "postroom_leases"),
        ("INSERT", "postroom_dead"),
        ("INSERT", "postroom_holds"),
    ],
)
def test_a_relay_that_misses_one_right_says_so_and_goes_on_once_it_has_it(role: Role, right: str, table: str) -> None:
    database, publisher, complaints = role.database, MemoryPublisher(), Complaints()
    publisher.reject(lambda message: message.key == "bad", MessageRejected("no", permanent=True))
    role.revoke(right, table)
    with relay_running(database, publisher, complaints, url=role.url, **SETTINGS):
        add(database, 2, keys=["bad"])
        add(database, 5)
        eventually(lambda: any(table in error for error in complaints.errors), otherwise=lambda: complaints.errors)
        role.grant(right, table)
        eventually(lambda: complaints.recoveries)
        eventually(lambda: len(set(ids(publisher))) == 5 * len(KEYS))
        eventually(lambda: [database.count(name) for name in ("dead", "holds")] == [1, 1])
        eventually(lambda: database.count("outbox") + database.count("parked") == 1)
    assert all("denied" in error for error in complaints.errors if table in error)
    assert first_versions(publisher.messages) == {key: [1, 2, 3, 4, 5] for key in KEYS}
    assert duplicates(ids(publisher)) == 0


def test_a_relay_that_may_not_even_read_our_settings_ends_with_an_error_that_names_the_table(role: Role) -> None:
    role.revoke("SELECT", "postroom_meta")
    with (
        pytest.raises(StoreError, match=r"denied.*postroom_meta"),
        relay_running(role.database, MemoryPublisher(), url=role.url, **SETTINGS),
    ):
        pass


# --- isolation levels that nobody asked for


class IsolatedHand(ConnectionHand):
    """An application that runs its transactions at a higher level than ours."""

    level: str

    def __init__(self, database: Database, outbox: Outbox) -> None:
        super().__init__(database, outbox)
        if not database.is_postgresql:
            self.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {self.level}")


class RepeatableReadHand(IsolatedHand):
    level = "REPEATABLE READ"


class SerializableHand(IsolatedHand):
    level = "SERIALIZABLE"


@pytest.fixture(params=[RepeatableReadHand, SerializableHand])
def hand(request: pytest.FixtureRequest, database: Database) -> Iterator[type[IsolatedHand]]:
    """Of the application; on PostgreSQL it is the default of everybody, the relay included."""
    kind: type[IsolatedHand] = request.param
    name = database.parts.database
    if database.is_postgresql:
        database.ask(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{kind.level.lower()}'")
    database.create_aggregates(KEYS)
    try:
        yield kind
    finally:
        if database.is_postgresql:
            database.ask(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')


@DRIVERS
def test_a_straggler_at_a_higher_isolation_level_is_delivered_in_its_place(
    database: Database, hand: type[IsolatedHand], driver: str
) -> None:
    publisher = MemoryPublisher()
    url = through(driver, database, database.url)
    with relay_running(database, publisher, url=url, lease_ttl="2s", publish_timeout="500ms"):
        with hand(database, Outbox()) as straggler:
            straggler.lock_and_add(KEYS[0])
            for key in KEYS[1:]:
                commit_one(database, hand, key)
            eventually(lambda: len(publisher.messages) == len(KEYS) - 1)
            straggler.commit()
        commit_one(database, hand, KEYS[0])
        eventually(lambda: len(publisher.messages) == len(KEYS) + 1, within=20)
    assert first_versions(publisher.messages) == commit_order(database)


def commit_one(database: Database, kind: type[Hand], key: str) -> None:
    with kind(database, Outbox()) as hand:
        hand.lock_and_add(key)
        hand.commit()


def test_a_crowd_at_a_higher_isolation_level_is_delivered_in_commit_order(
    database: Database, hand: type[IsolatedHand]
) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()

    def work(writer: Hand, random: Random) -> None:
        try:
            writer.lock_and_add(random.choice(KEYS[:5]))
            writer.commit()
        except (psycopg.OperationalError, pymysql.OperationalError) as error:
            if not lost_to_another(error):
                raise
            writer.rollback()

    with relay_running(database, publisher, complaints, lease_ttl="2s", publish_timeout="500ms"):
        with Crowd(database, work, threads=4, times=60, kind=hand):
            pass
        expected = commit_order(database)
        eventually(lambda: len(publisher.messages) >= sum(map(len, expected.values())), within=20)
    assert first_versions(publisher.messages) == expected
    assert duplicates(ids(publisher)) == 0
    assert complaints.of_more_than_a_delay == []


def lost_to_another(error: psycopg.OperationalError | pymysql.OperationalError) -> bool:
    return isinstance(error, psycopg.errors.SerializationFailure) or error.args[0] in (1213, 1020)


# --- rows written by hand


def write(database: Database, key: str | None, **columns: Any) -> str:
    """As somebody does who has not read how."""
    id = new_id()
    row = {"slot": slot_of(key, id), "id": id, "topic": TOPIC, "key": key, "payload": b'{"version": 1}', **columns}
    names = ", ".join("`key`" if name == "key" and not database.is_postgresql else name for name in row)
    places = ", ".join(["%s"] * len(row))
    database.ask(f"INSERT INTO postroom_outbox ({names}) VALUES ({places})", *row.values())
    return id


HEADERS: dict[str, tuple[str, dict[str, str]]] = {
    "no JSON": ("tenant=1", {UNREADABLE_HEADERS: "tenant=1"}),
    "nothing": ("", {UNREADABLE_HEADERS: ""}),
    "half of it": ('{"a": ', {UNREADABLE_HEADERS: '{"a": '}),
    "a list": ('["a"]', {UNREADABLE_HEADERS: '["a"]'}),
    "a text": ('"a"', {UNREADABLE_HEADERS: '"a"'}),
    "null": ("null", {UNREADABLE_HEADERS: "null"}),
    "values that are no texts": (
        '{"number": 1, "truth": true, "none": null, "deep": {"a": [1]}}',
        {"number": "1", "truth": "true", "none": "null", "deep": '{"a": [1]}'},
    ),
    "a number that no machine has": ('{"n": 1e999}', {"n": "Infinity"}),
    "a number of many digits": (f'{{"n": {"7" * 5000}}}', {UNREADABLE_HEADERS: f'{{"n": {"7" * 5000}}}'}),
    "half a character": ('{"a": "\\ud800"}', {"a": "\ud800"}),
    "a name of ours": ('{"postroom-id": "1"}', {"postroom-id": "1"}),
}


def test_a_row_with_broken_headers_is_delivered_and_so_are_all_others(database: Database) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()
    written = {write(database, "same", headers=text): headers for text, headers in HEADERS.values()}
    add(database, 1)
    with relay_running(database, publisher, complaints, **CREATING):
        eventually(lambda: len(publisher.messages) == len(HEADERS) + len(KEYS), otherwise=lambda: complaints.errors)
        eventually(lambda: database.count("outbox") == 0)
    arrived = {message.id: dict(message.headers) for message in publisher.messages if message.key == "same"}
    assert arrived == written
    assert list(arrived) == list(written)
    assert complaints.errors == []


def test_headers_that_are_nested_too_deep_do_not_stop_the_others(database: Database) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()
    text = f'{{"a": {"[" * 200_000}{"]" * 200_000}}}'
    deep = write(database, "deep", headers=text)
    add(database, 1)
    with relay_running(database, publisher, complaints, **CREATING):
        eventually(lambda: len(publisher.messages) == 1 + len(KEYS), otherwise=lambda: complaints.errors)
        eventually(lambda: database.count("outbox") == 0)
    assert {message.id: message.headers for message in publisher.messages}[deep] == {UNREADABLE_HEADERS: text}
    assert complaints.errors == []


@pytest.mark.parametrize("retention", [None, "1h"])
def test_a_row_with_half_a_character_in_its_headers_that_no_destination_takes_is_dead_and_can_be_seen(
    database: Database, retention: str | None
) -> None:
    arrived: list[str] = []

    def publish(message: Message) -> None:
        json.dumps(message.wire_headers(), ensure_ascii=False).encode()
        arrived.append(message.id)

    bad = write(database, "bad", headers='{"a": "\\ud800"}')
    behind = write(database, "bad", headers="{}")
    add(database, 1)
    settings: dict[str, Any] = {**CREATING, "retention": retention, "retry": "steps 0s"}
    with relay_running(database, publish, **settings):
        eventually(lambda: len(arrived) == len(KEYS))
        eventually(lambda: database.count("dead") == 1)
    [entry] = entries(database, "dead")
    assert (entry.message.id, dict(entry.message.headers)) == (bad, {"a": "\ud800"})
    assert database.count("holds") == 1
    assert behind not in arrived


def entries(database: Database, state: State) -> list[Any]:
    return ask_desk(database.url, lambda desk: desk.list(state=state))


ODD_ROWS: dict[str, dict[str, Any]] = {
    "a content type that nobody knows": {"content_type": "application/x-nobody-knows; charset=klingon"},
    "no content type": {"content_type": None},
    "a content type that says nothing": {"content_type": ""},
    "JSON that is none": {"content_type": "application/json", "payload": b"\xff\xfe{"},
    "nothing in it": {"payload": b""},
    "an empty topic": {"topic": ""},
    "an empty type": {"type": ""},
    "a sequence without a generation": {"sequence": 7},
    "an id that is none": {"id": "seven"},
    "an empty id": {"id": ""},
}


def test_odd_rows_are_delivered_as_they_are(database: Database) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()
    for name, columns in ODD_ROWS.items():
        write(database, name, **columns)
    add(database, 1)
    with relay_running(database, publisher, complaints, **CREATING):
        eventually(lambda: len(publisher.messages) >= len(ODD_ROWS) + len(KEYS), otherwise=lambda: complaints.errors)
        eventually(lambda: database.count("outbox") == 0)
    found = {str(message.key): message for message in publisher.messages}
    for name, columns in ODD_ROWS.items():
        assert {column: getattr(found[name], column) for column in columns} == columns
    assert complaints.errors == []


# --- keys


ODD_KEYS = [
    *LOOKALIKES,
    "A ",
    "a  ",
    "a\t",
    "O'Brien",
    "''",
    '"',
    '\\"',
    "\\",
    "`",
    "%",
    "%s",
    "%(key)s",
    ":key",
    "$1",
    "?",
    "{}",
    "; DROP TABLE postroom_outbox; --",
    "null",
    " ",
    "\n",
    "\U0001f40c",
    "\U0001f40c" * 255,
    "k" * 255,
    "ключ",
    "\u202ekey",
]
HELD = ["A", "a ", "O'Brien", "\U0001f40c" * 255, "ß"]


@pytest.mark.parametrize("claim", ["slots", "leader"])
def test_odd_keys_are_delivered_held_and_released_each_for_itself(database: Database, claim: str) -> None:
    publisher = MemoryPublisher()
    publisher.reject(lambda message: message.key in HELD, MessageRejected("no", permanent=True))
    first = {str(message.key): message.id for message in add(database, 1, keys=ODD_KEYS)}
    with relay_running(database, publisher, **{**CREATING, "claim": claim}):
        eventually(lambda: database.count("dead") == len(HELD))
        add(database, 2, first=2, keys=ODD_KEYS)
        eventually(lambda: len(publisher.messages) >= 3 * (len(ODD_KEYS) - len(HELD)))
        assert {message.key for message in publisher.messages} == {*ODD_KEYS} - {*HELD}
        holds: list[Hold] = ask_desk(database.url, lambda desk: desk.holds())
        assert {str(hold.key): hold.message_id for hold in holds} == {key: first[key] for key in HELD}
        publisher.recover()
        for key in HELD:
            assert ask_desk(database.url, lambda desk, key=key: desk.revive(topic=TOPIC, key=key)) == 1
        eventually(lambda: len(publisher.messages) == 3 * len(ODD_KEYS), otherwise=lambda: len(publisher.messages))
        eventually(lambda: database.count("outbox") == database.count("holds") == 0)
    assert first_versions(publisher.messages) == {key: [1, 2, 3] for key in ODD_KEYS}


# --- payloads


@pytest.fixture
def mariadb(database_of_this_worker: Named) -> Iterator[Database]:
    with closing(emptied("mariadb", database_of_this_worker)) as database:
        yield database


def add_large(database: Database, size: int) -> Message:
    with database.connection() as connection:
        message = Outbox(max_payload=None).add(connection, TOPIC, secrets.token_bytes(1) * size, key="large")
        connection.commit()
    return message


@contextmanager
def roomy(database: Database) -> Iterator[Database]:
    """Where 50 MB fit. On MariaDB that is a server of our own: others use the shared one, and its limits."""
    if database.is_postgresql:
        yield database
        return
    with throwaway(database.server) as (_, private):
        private.ask(f"SET GLOBAL max_allowed_packet = {256 * MEGABYTE}")  # for sessions that begin now
        private.close()
        yield private


def test_a_payload_of_50_mb_goes_through(database: Database) -> None:
    publisher, complaints, size = MemoryPublisher(), Complaints(), 50 * MEGABYTE
    with roomy(database) as place:
        large = add_large(place, size)
        add(place, 1)
        with relay_running(place, publisher, complaints, retention="1h"):
            eventually(lambda: len(publisher.messages) == 1 + len(KEYS), otherwise=lambda: complaints.errors)
            eventually(lambda: place.count("outbox") == 0)
        assert place.value("SELECT length(payload) FROM postroom_archive WHERE id = %s", large.id) == size
        place.ask("DELETE FROM postroom_archive")
    assert large.payload in [message.payload for message in publisher.messages]
    assert complaints.errors == []


def test_a_payload_that_the_server_does_not_take_fails_at_add_and_the_relay_goes_on(mariadb: Database) -> None:
    """The server hangs up, and the driver cannot say why: `max_payload` is there to say it before."""
    publisher, complaints = MemoryPublisher(), Complaints()
    allowed: int = mariadb.value("SELECT @@max_allowed_packet")
    with relay_running(mariadb, publisher, complaints, **CREATING):
        with pytest.raises(pymysql.OperationalError):
            add_large(mariadb, allowed)
        with mariadb.connection() as connection, pytest.raises(PayloadTooLarge, match=f"has {allowed} bytes"):
            Outbox().add(connection, TOPIC, bytes(allowed), key="large")
        large = add_large(mariadb, allowed // 2 - 4096)
        add(mariadb, 1)
        eventually(lambda: len(publisher.messages) == 1 + len(KEYS))
        eventually(lambda: mariadb.count("outbox") == 0)
    assert large.payload in [message.payload for message in publisher.messages]
    assert complaints.errors == []
