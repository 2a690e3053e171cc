"""The page of evidence says what the runs said, whatever that was; and what is committed is what they make."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as benches
from bench import everything
from bench.peers import command as peers_command
from bench.proof import __main__ as program
from bench.proof.markdown import figure, table
from bench.proof.page import render
from bench.proof.perform import as_report, follow
from bench.proof.readme import BEGIN, END, rewrite
from bench.proof.reasons import REASONS
from bench.proof.results import Result, load, save
from bench.proof.revision import revision
from bench.proof.runs import RUNS, Asked, Run
from chaos import __main__ as chaos

RUN = {run.name: run for run in RUNS}
MACHINE = {"cores": "2", "cpu": "A Processor", "memory": "8 GiB", "kernel": "Linux 6.1", "python": "3.13.0"}
EMPTY_README = f"# Postroom\n\n{BEGIN}\n{END}\n\nThe rest.\n"


def stored(name: str, report: dict[str, Any] | None, *, status: int = 0, quick: bool = False) -> dict[str, Result]:
    command = " ".join(("python", *RUN[name].argv(quick=quick)))
    began = "2026-01-02 03:04"
    return {
        name: Result(
            name=name, command=command, began=began, seconds=61.5, status=status, machine=MACHINE, report=report
        )
    }


def of_chaos(**changes: Any) -> dict[str, Any]:
    return {
        "name": "chaos",
        "store": "sqlite",
        "to": "file",
        "seed": 1,
        "seconds": 300.0,
        "versions": ["Somebroker 4.2"],
        "committed": 12_345,
        "delivered": 12_300,
        "lost": 0,
        "phantom": 0,
        "reordered": 0,
        "stale": 0,
        "corrupted": 0,
        "dead": 45,
        "dead_by_outage": 0,
        "duplicates": 7,
        "largest_gap": 8.25,
        "largest_delay": 9.5,
        "longest_wait_in_peace": 4.25,
        "ok": True,
        "violations": [],
        "mishaps": [],
        "caught": None,
        "faults": [
            {"kind": "kill relay", "seconds": 1.0, "happened": True, "duplicates": 1, "recovered_in": 0.5},
            {"kind": "kill relay", "seconds": 1.0, "happened": True, "duplicates": 6, "recovered_in": 2.5},
            {"kind": "storm", "seconds": 3.0, "happened": False, "duplicates": 0, "recovered_in": None},
        ],
        **changes,
    }


def of_bench(**changes: Any) -> dict[str, Any]:
    return {
        "name": "drain",
        "ours": 50_000,
        "reference": 100_000,
        "ratio": 0.5,
        "unit": "messages/s",
        "reference_is": "the driver alone",
        "messages": 200_000,
        "rounds": 5,
        "versions": {"python": "3.13.0", "server": "Somebase 17"},
        "fsync": "on",
        **changes,
    }


FAILED = {"failed": {"silent": "it said nothing"}}


def of_peers(
    ours: float, theirs: float, better: str = "higher", *, measure: str = "drain", spread: float = 1.25
) -> dict[str, Any]:
    def of(value: float) -> dict[str, Any]:
        low, high = value / spread, value * spread
        return {"value": value, "low": low, "high": high, "rounds": [low, value, high]}

    results: dict[str, Any] = {"postroom": of(ours), "rival": of(theirs), "silent": None}
    frame = {"about": "How quick they are.", "amounts": {"messages": 40_000, "limit_seconds": 40.0}}
    cut_off = {"unfinished": {"rival": {"acknowledged": 1_500, "of": 40_000}}}
    raised = {"about": "It fails.", "amounts": {"keys": 20}, "minutes": 15.0}
    return {
        "name": "peers",
        "versions": {"rival": {"rival-core": "1.2"}, "server": "Somebase 17"},
        "durability": "fsync=on",
        "configured": {"rival": "as its manual says | all of it"},
        "measures": [
            {
                "measure": measure,
                "unit": "messages/s",
                "better": better,
                "value_is": "median",
                "results": results,
                "timed_without_start_and_stop": ["rival"],
                **frame,
                **cut_off,
                **FAILED,
            }
        ],
        "behaviours": [{"behaviour": "outage", **raised, "results": {"rival": {"lost_messages": 3}}}],
        "left_out": {"another": "needs another Python"},
    }


def page_of(*results: dict[str, Result]) -> str:
    return render({name: result for each in results for name, result in each.items()})[0]


def row(page: str, *starts: str) -> list[str]:
    """The cells of the one row that begins with these."""
    beginning = f"| {' | '.join(starts)} |"
    (line,) = [line for line in page.splitlines() if line.startswith(beginning)]
    return [cell.strip() for cell in line.strip("|").split(" | ")][len(starts) :]


# --- what is run


def test_every_run_has_a_name_of_its_own() -> None:
    assert len(RUN) == len(RUNS)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("run", [run for run in RUNS if run.kind != "peers"], ids=lambda run: run.name)
def test_every_command_is_one_that_the_programs_understand(run: Run, quick: bool) -> None:
    _, program, *arguments = run.argv(quick=quick)
    parser = chaos.make_parser() if program == "chaos" else benches.make_parser()
    understood = parser.parse_args(arguments)
    if program == "bench":
        bench = benches.BENCHES[understood.bench]
        assert understood.store in bench.stores
        assert bool(understood.to) == bool(bench.to)


@pytest.mark.parametrize("quick", [False, True])
def test_all_that_is_measured_beside_the_peers_is_run_once(quick: bool) -> None:
    runs = [run.argv(quick=quick) for run in RUNS if run.kind == "peers"]
    parsed = [peers_command.make_parser().parse_args(argv[3:]) for argv in runs]
    assert [name for arguments in parsed for name in arguments.measures] == peers_command.CHOICES
    assert all(arguments.quick == quick for arguments in parsed)


def test_every_bench_is_run_somewhere() -> None:
    assert {run.arguments[1] for run in RUNS if run.kind in ("bench", "broker")} == set(benches.BENCHES)


def test_without_a_word_all_benches_are_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    performed: list[str] = []

    def perform(run: Run, root: Path, *, quick: bool) -> Result:
        performed.append(run.name)
        report = of_bench() if run.name != "publish-nats" else None
        return stored(run.name, report, status=0 if report else 2, quick=quick)[run.name]

    monkeypatch.setattr(everything, "perform", perform)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick"])
    with pytest.raises(SystemExit, match="1"):
        benches.main()
    expected = [run.name for run in RUNS if run.kind in ("bench", "broker")]
    table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert performed == expected
    assert [line[0].removeprefix("| ") for line in table[2:]] == expected
    assert sum("**failed**, exit status 2" in line for line in table) == 1


@pytest.mark.parametrize("words", [["--store", "mysql"], ["all", "--rounds", "3"], ["all", "--to", "kafka"]])
def test_all_benches_are_run_as_they_are_listed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    with pytest.raises(SystemExit, match="2"):
        benches.main()


def test_every_broker_and_every_break_is_run() -> None:
    brokers, breaks = benches.BROKERS, chaos.BREAKS
    assert {run.what for run in RUNS if run.kind == "broker"} == set(brokers)
    assert {run.what for run in RUNS if run.kind == "broken"} == set(breaks)


def test_a_part_is_chosen_by_name() -> None:
    assert [run.name for run in program.choose({}, "*-sqlite-hot*", quick=False)] == ["bench-sqlite-hotkey"]
    assert program.choose({}, "*", quick=False) == list(RUNS)


@pytest.mark.parametrize(
    ("stored_quick", "run_quick", "is_chosen"),
    [(False, False, False), (True, False, True), (True, True, False), (False, True, False)],
)
def test_what_has_a_result_is_not_missing_unless_that_was_quick(
    stored_quick: bool, run_quick: bool, is_chosen: bool
) -> None:
    results = stored("peers-drain", of_peers(2, 1), quick=stored_quick)
    assert bool(program.choose(results, "peers-drain", quick=run_quick, missing=True)) == is_chosen


@pytest.mark.parametrize(
    ("stored_quick", "run_quick", "is_chosen"),
    [(False, False, True), (True, False, True), (True, True, True), (False, True, False)],
)
def test_everything_is_run_again_but_no_quick_run_takes_the_place_of_another(
    stored_quick: bool, run_quick: bool, is_chosen: bool
) -> None:
    results = stored("peers-drain", of_peers(2, 1), quick=stored_quick)
    assert bool(program.choose(results, "peers-drain", quick=run_quick)) == is_chosen


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("report", [None, of_peers(2, 1)])
def test_what_failed_is_missing(quick: bool, report: dict[str, Any] | None) -> None:
    failed = stored("peers-drain", report, status=1)
    assert [run.name for run in program.choose(failed, "peers-drain", quick=quick, missing=True)] == ["peers-drain"]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("mishaps", [[], ["the consumer ended"]])
def test_what_broke_a_promise_is_not_missing(quick: bool, mishaps: list[str]) -> None:
    report = of_chaos(ok=False, violations=["lost 3"], mishaps=mishaps)
    broke = stored("chaos-sqlite-file-1", report, status=2 if mishaps else 1)
    assert program.choose(broke, "chaos-sqlite-file-1", quick=quick, missing=True) == []


def test_the_last_line_and_the_exit_status_are_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('round 1'); print('{\"ours\": 1}'); raise SystemExit(3)"
    status, last = follow([sys.executable, "-c", code], tmp_path)
    assert (status, as_report(last)) == (3, {"ours": 1})
    assert capfd.readouterr().out == "  round 1\n"


@pytest.mark.parametrize("line", ["", "Traceback", "3", "[1]"])
def test_a_last_line_that_is_no_object_is_no_report(line: str) -> None:
    assert as_report(line) is None


def test_what_was_stored_is_read_again(tmp_path: Path) -> None:
    results = {**stored("chaos-sqlite-file-1", of_chaos()), **stored("peers-drain", None, status=2)}
    for result in results.values():
        save(tmp_path, result)
    assert load(tmp_path) == results


def test_an_engine_that_is_broken_on_purpose_must_be_found() -> None:
    found = stored("broken-settle-first", of_chaos(caught=True, ok=False), status=1)["broken-settle-first"]
    missed = stored("broken-settle-first", of_chaos(caught=False))["broken-settle-first"]
    otherwise = stored("broken-settle-first", of_chaos(caught=False, ok=False), status=1)["broken-settle-first"]
    sound = stored("chaos-sqlite-file-1", of_chaos())["chaos-sqlite-file-1"]
    assert not program.is_failure(RUN["broken-settle-first"], found)
    assert program.is_failure(RUN["broken-settle-first"], missed)
    assert program.is_failure(RUN["broken-settle-first"], otherwise)
    assert not program.is_failure(RUN["chaos-sqlite-file-1"], sound)


# --- the page


def test_a_run_of_chaos_is_shown_with_all_that_was_judged() -> None:
    page = page_of(stored("chaos-sqlite-file-1", of_chaos()))
    cells = ["12,345", "12,300", "0", "0", "0", "0", "0", "45", "0", "7", "6", "8.25", "9.50", "4.25", "held"]
    assert row(page, "sqlite", "file", "1", "5") == cells
    assert row(page, "kill relay") == ["2", "0", "7", "2", "1.50", "2.50"]
    assert row(page, "storm") == ["1", "1", "0", "0", "–", "–"]
    assert "- Somebroker 4.2" in page


def test_a_promise_that_was_broken_is_shown() -> None:
    report = of_chaos(ok=False, violations=["lost 3", "stuck 1"], lost=3)
    page = page_of(stored("chaos-sqlite-file-1", report, status=1))
    assert row(page, "sqlite", "file", "1", "5")[-1] == "**broken**: lost 3, stuck 1"


def test_a_run_in_which_the_harness_failed_is_shown() -> None:
    page = page_of(stored("chaos-sqlite-file-1", of_chaos(mishaps=["consumer ended with status 1"]), status=2))
    assert row(page, "sqlite", "file", "1", "5")[-1] == "held; **the harness failed**: consumer ended with status 1"


@pytest.mark.parametrize(
    ("report", "status", "cells"),
    [
        (of_chaos(caught=True, ok=False, violations=["lost 3"]), 1, ["lost 3", "found"]),
        (of_chaos(caught=False, ok=False, violations=["stuck 1"]), 1, ["stuck 1", "**not found**"]),
        (of_chaos(caught=False), 0, ["–", "**not found**"]),
        (None, 2, ["–", "**failed**, exit status 2"]),
    ],
)
def test_a_broken_engine_is_found_or_it_is_said_that_it_was_not(
    report: dict[str, Any] | None, status: int, cells: list[str]
) -> None:
    page = page_of(stored("broken-settle-first", report, status=status))
    assert row(page, "`settle-first`")[-2:] == cells


def test_a_bench_is_shown_with_its_reference_and_its_ratio() -> None:
    page = page_of(stored("bench-sqlite-drain", of_bench()))
    assert row(page, "`drain`", "a backlog is emptied") == [
        "50,000", "the driver alone", "100,000", "messages/s", "higher", "0.500", "–", "5 × 200,000 messages",
    ]  # fmt: skip


@pytest.mark.parametrize(("ratio", "words"), [(0.9, "at most 1: met"), (1.001, "at most 1: **short**")])
def test_what_falls_short_of_what_is_asked_is_marked(ratio: float, words: str) -> None:
    page = page_of(stored("bench-postgresql-memory", of_bench(ratio=ratio, unit="MiB")))
    assert words in row(page, "`memory`")


def test_a_ratio_is_asked_to_be_at_least_or_at_most_something() -> None:
    assert Asked("at least", 0.5).is_met(0.5)
    assert not Asked("at least", 0.5).is_met(0.49)
    assert not Asked("at most", 0.5).is_met(0.51)


@pytest.mark.parametrize("name", ["chaos-sqlite-file-1", "bench-sqlite-drain", "publish-kafka", "peers-drain"])
def test_a_run_that_failed_is_shown_as_failed(name: str) -> None:
    page = page_of(stored(name, None, status=2))
    assert "**failed**, exit status 2" in page
    assert row(page, f"[{name}](proof/results/{name}.json)")[-1] == "2"


@pytest.mark.parametrize("name", list(RUN))
def test_a_run_that_is_missing_is_shown_as_missing(name: str) -> None:
    assert row(page_of(), name)[1:4] == ["–", "–", "**not run**"]


def test_a_quick_run_is_shown_with_its_own_command() -> None:
    page = page_of(stored("bench-sqlite-drain", of_bench(), quick=True))
    quick = "`python -m bench drain --store sqlite --quick`"
    assert f"- `bench-sqlite-drain` was run as {quick}, not as listed." in page
    assert f"{quick}, listed as `python -m bench drain --store sqlite`" in page


@pytest.mark.parametrize(
    ("ours", "theirs", "better", "words"),
    [
        (300, 100, "higher", "higher is better. First: postroom."),
        (100, 300, "higher", "higher is better. **First: rival**, 3.00 times as good as postroom."),
        (300, 100, "lower", "lower is better. **First: rival**, 3.00 times as good as postroom."),
        (100, 90, "higher", "First: postroom; rival and it are within each other's spread."),
        (90, 100, "higher", "**First: rival**, 1.11 times as good as postroom, within each other's spread."),
    ],
)
def test_whoever_is_first_among_the_peers_is_named(ours: float, theirs: float, better: str, words: str) -> None:
    assert f"{words}\n" in page_of(stored("peers-drain", of_peers(ours, theirs, better)))


def test_who_is_alone_is_not_first() -> None:
    report = of_peers(300, 100)
    del report["measures"][0]["results"]["rival"]
    assert "higher is better. Alone: postroom.\n" in page_of(stored("peers-drain", report))


def test_why_we_are_behind_is_said_only_when_we_are() -> None:
    measure, reason = next(iter(REASONS.items()))
    assert reason in page_of(stored("peers-enqueue", of_peers(100, 300, measure=measure)))
    assert reason not in page_of(stored("peers-enqueue", of_peers(300, 100, measure=measure)))
    assert reason not in page_of(stored("peers-enqueue", of_peers(100, 300)))


def test_the_peers_are_shown_with_what_they_are_and_what_they_did() -> None:
    page = page_of(stored("peers-drain", of_peers(300, 100)))
    assert row(page, "rival", "as its manual says \\| all of it") == []
    assert row(page, "rival", "100") == ["80.0", "125", "80.0, 100, 125"]
    assert row(page, "silent") == ["no result", "–", "–", "–"]
    assert "### drain\n\nHow quick they are.\n\nMade with: messages 40,000, limit seconds 40.\n\nIn " in page
    assert "\n\nCut off by the limit, with so many messages acknowledged: rival (1,500 of 40,000).\n\n" in page
    assert "\n\nTimed without start and stop: rival.\n\n" in page
    assert "\n\nFailed: silent: it said nothing.\n\n" in page
    outage = "### outage\n\nIt fails.\n\nMade with: keys 20.\n\nMinutes: 15.0.\n\n| system | lost messages |"
    assert outage in page
    assert "\n\nDurability: fsync=on.\n\n" in page
    assert "\n- rival-core 1.2\n- Somebase 17\n" in page
    assert row(page, "another") == ["needs another Python"]


def test_several_runs_beside_the_peers_are_shown_as_one() -> None:
    other = of_peers(300, 100, measure="drain one key")
    other["configured"] = {"rival": "as its manual says | all of it", "postroom": "as it comes"}
    other["behaviours"], other["left_out"] = [], {"a third": "it could not be installed"}
    page = page_of(stored("peers-drain", of_peers(300, 100)), stored("peers-onekey", other))
    assert row(page, "rival", "as its manual says \\| all of it") == []
    assert row(page, "postroom", "as it comes") == []
    assert re.findall("^### (.+)$", page, re.MULTILINE) == ["drain", "drain one key", "outage", "Left out"]
    assert page.count("Durability: fsync=on.") == 1
    assert (row(page, "another"), row(page, "a third")) == (["needs another Python"], ["it could not be installed"])


def test_a_behaviour_without_results_is_shown_with_its_failure() -> None:
    report = of_peers(300, 100)
    report["behaviours"] = [{"behaviour": "kill", "about": "They die.", "results": {}, "failed": "it ended"}]
    assert "### kill\n\nThey die.\n\nFailed: it ended.\n\n" in page_of(stored("peers-drain", report))


def test_what_a_run_was_made_of_is_shown() -> None:
    (result,) = stored("bench-sqlite-drain", of_bench()).values()
    assert result.revision is None
    link = "[bench-sqlite-drain](proof/results/bench-sqlite-drain.json)"
    known = {result.name: replace(result, revision="1234abc-dirty")}
    assert row(page_of({result.name: result}), link)[1] == "–"
    assert row(page_of(known), link)[1] == "1234abc-dirty"


def test_what_a_run_was_made_on_is_shown() -> None:
    results = {**stored("bench-sqlite-drain", of_bench()), **stored("bench-mysql-drain", of_bench())}
    ours, theirs = results.values()
    elsewhere = {ours.name: ours, theirs.name: replace(theirs, machine={**MACHINE, "cores": "64"})}
    page = page_of(elsewhere)
    assert row(page, "machine 2")[0] == "64"
    machines = [row(page, f"[{name}](proof/results/{name}.json)")[2] for name in elsewhere]
    assert machines == ["1", "2"]


def test_a_revision_is_a_commit_and_whether_what_is_measured_differs(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "First")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    commit = revision(tmp_path)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("new")
    assert revision(tmp_path) == commit
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("new")
    assert revision(tmp_path) == f"{commit}-dirty"


def test_the_same_results_give_the_same_bytes() -> None:
    results = {
        **stored("chaos-sqlite-file-1", of_chaos()),
        **stored("bench-sqlite-drain", of_bench()),
        **stored("peers-drain", of_peers(300, 100)),
    }
    page, plots = render(results)
    assert (page, plots) == render(results)
    assert sorted(plots) == ["peers-drain.svg", "recovery.svg", "sqlite.svg"]
    assert all(f"](proof/{name})" in page for name in plots)


def test_a_plot_has_its_figures_and_neither_a_script_nor_a_date() -> None:
    svg = render(stored("bench-sqlite-drain", of_bench()))[1]["sqlite.svg"]
    assert ">50,000<" in svg
    assert ">100,000<" in svg
    assert "<script" not in svg
    assert "<!--" not in svg


def test_writing_the_page_leaves_no_plot_of_earlier_results(tmp_path: Path) -> None:
    (tmp_path / program.README).write_text(EMPTY_README)
    save(tmp_path / program.RESULTS, stored("bench-sqlite-drain", of_bench())["bench-sqlite-drain"])
    (tmp_path / program.PLOTS / "old.svg").write_text("old")
    program.write(tmp_path)
    assert [path.name for path in (tmp_path / program.PLOTS).glob("*.svg")] == ["sqlite.svg"]
    assert "50,000" in (tmp_path / program.PAGE).read_text()


# --- the README


def test_the_readme_has_the_totals_of_chaos_and_the_peers() -> None:
    results = {
        **stored("chaos-sqlite-file-1", of_chaos()),
        **stored("chaos-sqlite-file-2", of_chaos(seed=2, ok=False, violations=["stale 1"]), status=1),
        **stored("chaos-sqlite-file-3", None, status=2),
        **stored("chaos-mysql-amqp-1", of_chaos(mishaps=["the consumer ended"], violations=["lost 1"]), status=2),
        **stored("peers-drain", of_peers(300, 100)),
    }
    assert rewrite(EMPTY_README, results).splitlines()[3:5] == [
        "- **Chaos:** 4 faults in 10 minutes and 2 runs; of 24,690 committed messages 0 lost, 0 invented, 0 out of "
        "order, 0 dead by an outage. **Promises that were broken:** lost 1, stale 1. 2 more failed.",
        "- **Drain**, messages/s, higher is better: postroom 300, rival 100 (timed without its start and stop).",
    ]


def test_who_is_alone_is_not_compared_in_the_readme() -> None:
    report = of_peers(300, 100)
    del report["measures"][0]["results"]["rival"]
    assert rewrite(EMPTY_README, stored("peers-drain", report)) == EMPTY_README


def test_without_peers_the_readme_has_the_drain() -> None:
    lines = rewrite(EMPTY_README, stored("bench-postgresql-drain", of_bench())).splitlines()
    assert lines[3] == "- **A backlog in PostgreSQL:** 50,000 messages/s, and 100,000 of the driver alone."


def test_without_results_as_listed_the_readme_says_nothing() -> None:
    quick = {
        **stored("chaos-sqlite-file-1", of_chaos(), quick=True),
        **stored("bench-postgresql-drain", of_bench(), quick=True),
        **stored("peers-drain", None, status=2),
    }
    assert rewrite(EMPTY_README, quick) == EMPTY_README
    assert rewrite(rewrite(EMPTY_README, stored("bench-postgresql-drain", of_bench())), {}) == EMPTY_README


def test_a_readme_without_a_place_for_the_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        rewrite("# Postroom\n", {})


# --- what is committed


def test_the_page_and_the_readme_are_what_the_stored_results_make() -> None:
    """If this fails: `make proof ARGS=--render`."""
    results = load(program.ROOT / program.RESULTS)
    page, plots = render(results)
    readme = (program.ROOT / program.README).read_text(encoding="utf-8")
    found = {path.name: path.read_text(encoding="utf-8") for path in (program.ROOT / program.PLOTS).glob("*.svg")}
    assert (program.ROOT / program.PAGE).read_text(encoding="utf-8") == page
    assert readme == rewrite(readme, results)
    assert found == plots


def test_no_result_names_an_address_or_a_folder_of_whoever_made_it() -> None:
    unwanted = re.compile(rf"https?://|{re.escape(str(program.ROOT))}|{re.escape(str(Path.home()))}/|site-packages")
    for path in (program.ROOT / program.RESULTS).glob("*.json"):
        assert not unwanted.search(path.read_text(encoding="utf-8")), path.name


# --- words


def test_figures_are_short() -> None:
    assert [figure(value) for value in (0, 1234567, 1234.5, 99.94, 8.251, True)] == [
        "0", "1,234,567", "1,234", "99.9", "8.25", "yes",
    ]  # fmt: skip


def test_a_cell_cannot_end_its_row() -> None:
    assert table(["a"], [["x | y\nz"], [None]]) == "| a |\n| --- |\n| x \\| y z |\n| – |"
