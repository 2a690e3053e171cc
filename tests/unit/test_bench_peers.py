"""The parts of `python -m bench peers` that need no server: ranking, judging, the protocol, its command line."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import comparison, environments, kill
from bench.peers.amounts import FULL, QUICK
from bench.peers.behaviours import OBSERVED, Behaviour
from bench.peers.command import CHOICES, OUTAGE, make_parser
from bench.peers.complaints import PROJECT, complaint
from bench.peers.deliveries import Delivery, judge, parse_log, reordered_keys, silence
from bench.peers.drivers.protocol import LOCK, ORDER, SIZE, Handler, Program, Writer, answer, backlog, compose, parse
from bench.peers.environments import REQUIREMENTS, NotBuilt, is_current, python_for, settings
from bench.peers.kill import count, count_lines
from bench.peers.measures import MEASURES, Measure, Round, percentiles
from bench.peers.processes import DriverFailed
from bench.peers.ranking import ahead_of, first, percentile, pooled, ranked, rotated, summary
from bench.peers.stage import Stage
from bench.peers.systems import BEHAVIOURS, SYSTEMS, System
from bench.postgresql import PostgreSQL
from tests.services.processes import ServerUnavailable

# ------------------------------------------------------------------------------------------------ ranking


def test_rounds_become_a_median_with_its_spread() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"value": 2.0, "low": 1.0, "high": 3.0, "rounds": [3.0, 1.0, 2.0]}


def test_who_is_first_depends_on_what_is_better() -> None:
    results = {"one": {"value": 10.0}, "two": {"value": 20.0}}
    assert first(results, "higher") == "two"
    assert first(results, "lower") == "one"
    assert ranked(results, "higher") == ["two", "one"]


def test_those_ahead_of_one_are_named() -> None:
    assert ahead_of("two", ["one", "two", "three"]) == ["one"]
    assert ahead_of("absent", ["one", "two"]) == []


def test_without_results_nobody_is_first() -> None:
    assert first({}, "higher") is None


def test_every_system_begins_a_round_in_its_turn() -> None:
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated(["a", "b", "c"], 2)) == ["a", "b", "c"]


def test_a_percentile_is_one_of_the_samples() -> None:
    samples = [float(each) for each in range(1, 101)]
    assert percentile(samples, 0.5) == 50.0
    assert percentile(samples, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def test_a_percentile_is_that_of_all_rounds_together() -> None:
    rounds = [[1.0] * 99 + [50.0], [1.0] * 99 + [60.0]]
    samples = [sample for each in rounds for sample in each]
    found = pooled([percentile(each, 0.995) for each in rounds], samples, 0.99)
    assert found == {"value": 1.0, "low": 50.0, "high": 60.0, "rounds": [50.0, 60.0], "samples": 200}


# ------------------------------------------------------------------------------------------------ reporting


class NoStage(Stage):
    """Nothing is played on it."""

    def __init__(self) -> None: ...

    def forget(self) -> None: ...


def measured(
    monkeypatch: pytest.MonkeyPatch, rounds: dict[str, list[Round | Exception]], **changes: Any
) -> list[dict[str, Any]]:
    """What is reported of a measure whose rounds were these."""
    left = {name: iter(each) for name, each in rounds.items()}

    def run(stage: Stage, system: System, amount: object) -> Round:
        found = next(left[system.name])
        if isinstance(found, Exception):
            raise found
        return found

    name = changes.pop("name", "drain")
    monkeypatch.setitem(MEASURES, name, replace(MEASURES[name], run=run, **changes))
    amount = replace(QUICK, rounds=max(map(len, rounds.values())))
    return comparison.measure(NoStage(), name, [SYSTEMS[each] for each in rounds], amount)


def emptied(rate: float, acknowledged: int = 10, of: int = 10) -> Round:
    return Round(values={"drain": rate}, acknowledged=acknowledged, of=of)


def test_what_a_measure_is_and_with_how_much_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (report,) = measured(monkeypatch, {"postroom": [emptied(3.0)], "txoutbox": [emptied(4.0)]})
    assert report["about"] == MEASURES["drain"].about
    assert report["amounts"]["messages"] == QUICK.messages
    assert report["amounts"]["messages_for_procrastinate"] == QUICK.few_messages
    assert (report["first"], report["ahead_of_postroom"]) == ("txoutbox", ["txoutbox"])
    assert "unfinished" not in report
    assert "failed" not in report


def test_a_drain_that_was_cut_off_is_marked_with_its_least_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[Round | Exception] = [emptied(1.0, 7), emptied(1.0, 4), emptied(1.0, 9), emptied(1.0)]
    (report,) = measured(monkeypatch, {"postroom": [emptied(3.0)] * 4, "txoutbox": rounds})
    assert report["unfinished"] == {"txoutbox": {"acknowledged": 4, "of": 10}}


def test_whose_time_is_not_that_of_the_others_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (report,) = measured(monkeypatch, {"postroom": [emptied(3.0)], "debezium": [emptied(3.0)]})
    assert report["timed_without_start_and_stop"] == ["debezium"]
    assert "keeps_no_order" not in report


def test_one_that_fails_does_not_keep_the_others_from_their_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: list[Round | Exception] = [DriverFailed(f"nothing at https://example.com in {PROJECT}/x"), emptied(1.0)]
    (report,) = measured(monkeypatch, {"postroom": [emptied(3.0), emptied(5.0)], "txoutbox": failing})
    assert report["failed"] == {"txoutbox": "nothing at (an address) in ./x"}
    assert report["results"]["postroom"]["rounds"] == [3.0, 5.0]


def test_one_that_fails_late_has_no_result_of_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: list[Round | Exception] = [emptied(9.0), DriverFailed("it ended")]
    (report,) = measured(monkeypatch, {"postroom": [emptied(3.0), emptied(5.0)], "txoutbox": failing})
    assert (list(report["results"]), report["first"]) == (["postroom"], "postroom")


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"left_out": {"debezium": "no Java"}}, []),
        ({"left_out": {"postroom": "no asyncpg"}}, ["postroom is left out: no asyncpg"]),
        ({"left_out": {"txoutbox": "no index"}, "configured": {"postroom": ""}}, ["nobody is left to compare with"]),
        ({"configured": {"pgqueuer": ""}}, []),  # which is what was asked for
        ({"measures": [{"measure": "drain", "failed": {"txoutbox": "it ended"}}]}, []),
        ({"measures": [{"measure": "drain", "failed": {"postroom": "it ended"}}]}, ["drain failed: it ended"]),
        ({"behaviours": [{"behaviour": "kill", "results": {"pgqueuer": {"error": "it is silent"}}}]}, []),
        (
            {"behaviours": [{"behaviour": "kill", "results": {"postroom": {"error": "it is silent"}}}]},
            ["kill failed: it is silent"],
        ),
        ({"behaviours": [{"behaviour": "kill", "results": {}, "failed": "no server"}]}, ["kill failed: no server"]),
    ],
)
def test_a_comparison_without_ours_or_without_others_has_failed(changes: dict[str, Any], problems: list[str]) -> None:
    configured = {"postroom": "as it comes", "txoutbox": "as it comes"}
    report = {"configured": configured, "left_out": {}, "measures": [], "behaviours": [], **changes}
    assert comparison.problems_of(report) == problems


def test_whoever_is_told_to_end_does_not_wait_for_those_that_are_to_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(database=PostgreSQL(), folder=PROJECT)
    started = threading.Barrier(2)

    def play(stage: Stage, system: System) -> dict[str, Any]:
        started.wait(10)
        if system.name == "postroom":
            raise KeyboardInterrupt
        kill.wait_or_end(stage, lambda: False, look=0.001)  # longer than this test may take
        with pytest.raises(DriverFailed, match="told to end"):
            stage.driver(system)
        return {}

    monkeypatch.setattr(kill, "kill_repeatedly", play)
    with pytest.raises(KeyboardInterrupt):
        kill.kill(stage, [SYSTEMS["postroom"], SYSTEMS["txoutbox"]])


def test_percentiles_are_of_all_samples_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[Round | Exception] = [
        Round(values={"latency p50": 1.0, "latency p99": 9.0}, samples=[1.0, 1.0, 9.0]),
        Round(values={"latency p50": 2.0, "latency p99": 3.0}, samples=[2.0, 2.0, 3.0]),
    ]
    median, extreme = measured(monkeypatch, {"postroom": rounds}, name="latency")
    assert median["results"]["postroom"] == {"value": 2.0, "low": 1.0, "high": 2.0, "rounds": [1.0, 2.0], "samples": 6}
    assert extreme["results"]["postroom"]["value"] == 9.0
    assert median["value_is"] == extreme["value_is"] == "all rounds together"


def test_a_median_and_a_99th_are_made_of_delays() -> None:
    assert [(each.measure, each.share) for each in percentiles("latency")] == [
        ("latency p50", 0.5),
        ("latency p99", 0.99),
    ]


def test_a_behaviour_that_fails_is_reported_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stage: Stage, systems: Sequence[System], minutes: float) -> dict[str, dict[str, Any]]:
        raise DriverFailed("it ended")

    monkeypatch.setitem(OBSERVED, "kill", replace(OBSERVED["kill"], observe=fail))
    report = comparison.observe(NoStage(), "kill", [SYSTEMS["postroom"]], 1.0)
    assert (report["results"], report["failed"]) == ({}, "it ended")


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
def test_a_behaviour_of_nobody_is_not_observed(name: str) -> None:
    report = comparison.observe(NoStage(), name, [SYSTEMS["debezium"]], 1.0)
    assert report["results"] == {}
    assert "failed" not in report


@pytest.mark.parametrize("described", [*MEASURES.values(), *OBSERVED.values()])
def test_everything_is_described_with_its_amounts(described: Measure | Behaviour) -> None:
    amounts = described.amounts(FULL) if isinstance(described, Measure) else described.amounts
    assert described.about.endswith(".")
    assert amounts["payload_bytes"] == SIZE
    assert "keys" in amounts


def test_all_behaviours_can_be_observed() -> None:
    assert set(OBSERVED) == BEHAVIOURS


# ------------------------------------------------------------------------------------------------ complaints


def test_a_complaint_names_neither_addresses_nor_folders_of_ours() -> None:
    error = OSError(
        f"'https://user:secret@index.example/simple/x' and postgresql://me@127.0.0.1/db\n  at {PROJECT}/bench/x.py, "
        f"{Path.home()}/.cache/y, {tempfile.gettempdir()}/z"
    )
    assert complaint(error) == ("'(an address)' and (an address) at ./bench/x.py, ~/.cache/y, (a temporary folder)/z")


def test_a_complaint_is_short() -> None:
    assert len(complaint(OSError("x" * 5_000))) == 300


def test_why_something_could_not_be_installed_is_told_to_whoever_runs_it_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(command: object, **options: object) -> None:
        raise ServerUnavailable("no such package at https://index.example")

    monkeypatch.setattr(environments, "run", fail)
    monkeypatch.setattr(environments.places, "ROOT", tmp_path)
    with pytest.raises(NotBuilt, match=r"^it could not be installed$"):
        python_for(SYSTEMS["txoutbox"])
    assert "index.example" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ judging


def deliveries(*identities: tuple[str, int]) -> list[Delivery]:
    return [Delivery(key=key, number=number, at=float(at)) for at, (key, number) in enumerate(identities)]


def test_all_that_arrived_once_and_in_order_is_well() -> None:
    verdict = judge([("a", 0), ("a", 1)], deliveries(("a", 0), ("a", 1)), [])
    assert (verdict.delivered, verdict.lost, verdict.duplicates, verdict.reordered_keys) == (2, 0, 0, 0)


def test_what_neither_arrived_nor_is_in_the_database_is_lost() -> None:
    written = [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    verdict = judge(written, deliveries(("a", 0)), [(("a", 1), "dead"), (("a", 2), "pending")])
    assert (verdict.delivered, verdict.dead, verdict.pending, verdict.lost) == (1, 1, 1, 1)


def test_what_arrived_is_delivered_even_if_it_is_still_in_the_database() -> None:
    verdict = judge([("a", 0)], deliveries(("a", 0)), [(("a", 0), "pending")])
    assert (verdict.delivered, verdict.pending, verdict.lost) == (1, 0, 0)


def test_a_second_arrival_is_a_duplicate_and_no_reordering() -> None:
    arrived = deliveries(("a", 0), ("a", 1), ("a", 0), ("a", 1), ("a", 2))
    verdict = judge([("a", 0), ("a", 1), ("a", 2)], arrived, [])
    assert (verdict.duplicates, verdict.reordered_keys) == (2, 0)


def test_a_first_arrival_after_a_later_message_is_a_reordering_of_its_key() -> None:
    assert reordered_keys(deliveries(("a", 0), ("b", 1), ("a", 2), ("b", 0), ("a", 3))) == {"b"}


def test_a_log_may_end_in_the_middle_of_a_line() -> None:
    assert parse_log("a 0 1.5\na 1 2.5\na 2") == [
        Delivery(key="a", number=0, at=1.5),
        Delivery(key="a", number=1, at=2.5),
    ]
    assert parse_log("") == []


def test_deliveries_are_counted_with_duplicates_and_without(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert (count_lines(log), count(log)) == (0, 0)
    log.write_text("a 0 1.0\na 0 2.0\na 1 3.0\na 2")
    assert (count_lines(log), count(log)) == (3, 2)


def test_silence_is_the_longest_gap() -> None:
    assert silence([Delivery(key="a", number=n, at=at) for n, at in enumerate((0.0, 1.0, 4.5, 5.0))]) == 3.5
    assert silence([]) == 0.0


# ------------------------------------------------------------------------------------------------ protocol


def test_a_payload_says_its_key_and_number_and_has_its_size() -> None:
    payload = compose("key-7", 42)
    assert len(payload) == SIZE
    assert parse(payload) == parse(payload.encode()) == ("key-7", 42)


def test_a_backlog_takes_the_keys_in_turn() -> None:
    messages = list(backlog(5, keys=2))
    assert [parse(payload) for _, payload in messages] == [
        ("key-0", 0),
        ("key-1", 0),
        ("key-0", 1),
        ("key-1", 1),
        ("key-0", 2),
    ]
    assert all(key == parse(payload)[0] for key, payload in messages)


class Pretence:
    """A system that keeps everything in a list."""

    packages = ("postroom",)
    configured = "not at all"
    left = ""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.messages: list[str] = []

    async def prepare(self, url: str) -> None:
        raise LookupError(f"no {url}")

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        self.messages.extend(payload for _, payload in messages)

    @asynccontextmanager
    async def worker(self, url: str, handle: Handler, keys: int) -> AsyncIterator[None]:
        running = asyncio.create_task(self._run(handle))
        yield
        await running

    async def _run(self, handle: Handler) -> None:
        while self.messages:
            await handle(self.messages.pop(0))

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        yield PretenceWriter(self)


class PretenceWriter:
    def __init__(self, system: Pretence) -> None:
        self._system = system

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._system.statements.append("BEGIN")
        yield
        self._system.statements.append("COMMIT")

    async def execute(self, statement: str) -> None:
        self._system.statements.append(statement)

    async def add(self, key: str, payload: str) -> None:
        self._system.messages.append(payload)


async def test_a_driver_fills_and_drains() -> None:
    program = Program(Pretence())
    assert await answer(program, {"do": "fill", "url": "", "messages": 10, "keys": 2}) == {}
    drained = await answer(program, {"do": "drain", "url": "", "messages": 10, "keys": 2, "seconds": 10})
    assert drained["handled"] == 10
    assert 0 < drained["first_to_last"] <= drained["seconds"]


async def test_a_drain_that_ends_early_is_timed_to_its_last_message() -> None:
    system = Pretence()
    await system.fill("", backlog(3, 1))
    drained = await answer(Program(system), {"do": "drain", "url": "", "messages": 4, "keys": 1, "seconds": 0.2})
    assert drained["handled"] == 3
    assert drained["first_to_last"] < 0.1 < drained["seconds"]


async def test_a_driver_says_which_runtime_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    system = Pretence()
    monkeypatch.setattr(system, "runtime", lambda: {"java": "17"}, raising=False)
    assert list((await answer(Program(system), {"do": "describe"}))["versions"]) == ["postroom", "java"]


async def test_a_driver_describes_what_it_drives() -> None:
    described = await answer(Program(Pretence()), {"do": "describe"})
    assert described["configured"] == "not at all"
    assert list(described["versions"]) == ["postroom"]


async def test_what_a_driver_cannot_do_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert await answer(Program(Pretence()), {"do": "prepare", "url": "url"}) == {
        "error": "prepare: LookupError: no url"
    }
    assert "LookupError" in capsys.readouterr().err


async def test_a_message_is_written_in_the_transaction_of_a_row() -> None:
    system = Pretence()
    written = await answer(Program(system), {"do": "write", "url": "", "key": "a", "number": 1})
    assert written["sent"] > 0
    assert system.statements == ["BEGIN", ORDER, "COMMIT"]
    assert [parse(payload) for payload in system.messages] == [("a", 1)]


async def test_a_transaction_may_stay_open_and_lock() -> None:
    system = Pretence()
    program = Program(system)
    await answer(program, {"do": "begin", "url": "", "lock": True})
    await answer(program, {"do": "add", "url": "", "key": "a", "number": 1})
    assert system.statements == ["BEGIN", LOCK]
    await answer(program, {"do": "commit"})
    assert system.statements == ["BEGIN", LOCK, "COMMIT"]


async def test_a_worker_writes_down_what_it_handles(tmp_path: Path) -> None:
    system, log = Pretence(), tmp_path / "log"
    await system.fill("", backlog(3, 1))
    program = Program(system)
    await answer(program, {"do": "work", "url": "", "log": str(log), "keys": 1})
    await answer(program, {"do": "rest"})
    assert [each.identity for each in parse_log(log.read_text())] == [("key-0", 0), ("key-0", 1), ("key-0", 2)]


async def test_while_there_is_a_switch_the_destination_is_down(tmp_path: Path) -> None:
    system, log, switch = Pretence(), tmp_path / "log", tmp_path / "switch"
    switch.touch()
    await system.fill("", backlog(1, 1))
    program = Program(system)
    await answer(program, {"do": "work", "url": "", "log": str(log), "keys": 1, "switch": str(switch)})
    with pytest.raises(ConnectionError):
        await program.rest()
    assert log.read_text() == ""


# ------------------------------------------------------------------------------------------------ set-up


def test_every_system_has_a_driver_and_all_but_ours_their_pinned_versions() -> None:
    drivers = {path.name.removesuffix("_driver.py") for path in REQUIREMENTS.parent.glob("drivers/*_driver.py")}
    assert {system.driver for system in SYSTEMS.values()} == drivers
    assert {path.stem for path in REQUIREMENTS.glob("*.txt")} == drivers - {"postroom"}


def test_requirements_name_exact_versions_and_no_addresses() -> None:
    for path in REQUIREMENTS.glob("*.txt"):
        lines = path.read_text().splitlines()
        assert all("==" in line and "://" not in line for line in lines), path


def test_every_system_does_what_there_is() -> None:
    for system in SYSTEMS.values():
        assert system.does <= {*MEASURES, *BEHAVIOURS}


def test_a_change_of_versions_builds_an_environment_again(tmp_path: Path) -> None:
    requirements = tmp_path / "some.txt"
    requirements.write_text("some==1\n")
    assert not is_current(tmp_path / "environment", requirements)


def test_uv_is_told_what_pip_was_told() -> None:
    told = settings({"PIP_INDEX_URL": "index", "PIP_CERT": "certificate", "VIRTUAL_ENV": "mine", "HOME": "home"})
    assert told["UV_DEFAULT_INDEX"] == "index"
    assert told["SSL_CERT_FILE"] == "certificate"
    assert told["HOME"] == "home"
    assert "VIRTUAL_ENV" not in told


def test_by_default_everything_is_compared() -> None:
    arguments = make_parser().parse_args([])
    assert (arguments.only, arguments.measures) == (list(SYSTEMS), CHOICES)
    assert (arguments.rounds, arguments.outage_minutes) == (None, OUTAGE)
    assert FULL.backlog == 200_000


def test_systems_and_measures_can_be_chosen() -> None:
    arguments = make_parser().parse_args(["--only", "postroom,txoutbox", "--measures", "drain,kill"])
    assert (arguments.only, arguments.measures) == (["postroom", "txoutbox"], ["drain", "kill"])


@pytest.mark.parametrize("words", [["--only", "nobody"], ["--measures", "drain,nothing"], ["--rounds", "0"]])
def test_what_is_not_there_cannot_be_chosen(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(words)
    assert words[1].split(",")[-1] in capsys.readouterr().err
