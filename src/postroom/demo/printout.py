"""The ledger on paper, and what the audience has just seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .outcome import Outcome
from .shop import url_of

COMMANDS = ("status", "ls --state dead", "holds", "revive --all", "drain --publisher stdout:")


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    count: int
    note: str
    must_be_zero: bool = False

    @property
    def style(self) -> str:
        if not self.must_be_zero:
            return ""
        return "bold red" if self.count else "bold green"


def print_outcome(console: Console, outcome: Outcome, database: Path | None) -> None:
    _print_table(console, outcome)
    for paragraph in (*_story(outcome), *_where_next(database, outcome)):
        console.print(paragraph, soft_wrap=not console.is_terminal, highlight=False)
        console.print()


def _print_table(console: Console, outcome: Outcome) -> None:
    table = Table(title=f"The ledger (seed {outcome.plan.seed})", title_justify="left", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for line in _lines(outcome):
        table.add_row(line.name, f"{line.count}", line.note, style=line.style)
    console.print()
    console.print(table)
    console.print()


def _lines(outcome: Outcome) -> Iterator[Line]:
    ledger, account = outcome.ledger, outcome.account
    share = ", ".join(f"{relay}: {count}" for relay, count in sorted(account.by_relay.items()))
    yield Line("committed", ledger.committed, "messages in the shop's own book")
    yield Line("delivered", ledger.delivered, share)
    yield Line("dead", ledger.dead, "refused for good, kept for people to decide")
    yield Line("lost", len(ledger.lost), "committed, but nowhere", must_be_zero=True)
    yield Line("phantom", len(ledger.phantom), "sent, but never committed", must_be_zero=True)
    yield Line("reordered", len(ledger.reordered), "within a topic and key", must_be_zero=True)
    yield Line("duplicates", ledger.duplicates, "in flight when something died; an inbox drops them")
    if ledger.pending:
        yield Line("pending", ledger.pending, "still in the outbox", must_be_zero=True)
    yield Line("retried", account.retried, "refused at first, then delivered")


def _story(outcome: Outcome) -> Iterator[str]:
    happenings, ledger = outcome.happenings, outcome.ledger
    if not happenings.in_time:
        yield "[bold red]It did not end in time.[/bold red]"
    elif not outcome.is_good:
        examples = [*ledger.lost[:2], *ledger.phantom[:2], *ledger.reordered[:2]]
        yield (
            "[bold red]What Postroom promises did not hold.[/bold red] Please report this, with the seed. "
            f"Messages concerned: {', '.join(examples) or 'those that are pending'}."
        )
    else:
        yield (
            f"[bold]What you just saw:[/bold] three processes of a shop committed {ledger.committed} messages together "
            f"with their orders. {happenings.rolled_back} transactions and {happenings.savepoints_rolled_back} "
            f"savepoints were rolled back and one process was killed in the middle of a transaction: nothing of that "
            f"was sent. The destination was down for {happenings.outage_seconds:.1f} s, then "
            f"{happenings.killed_relay} was killed with SIGKILL: the others went on where it stopped. Every message "
            f"arrived, or is dead and can be seen, and those of one key arrived in the order they were committed in."
        )
    yield (
        f"[bold]Without an outbox:[/bold] {outcome.never_happened} messages were added to transactions or savepoints "
        f"that never committed; sent before the commit, they would have told the world of orders that do not exist. "
        f"{outcome.committed_in_outage} messages were committed while the destination was down; sent after the commit, "
        f"they would have had nobody to go to."
    )


def _where_next(database: Path | None, outcome: Outcome) -> Iterator[str]:
    if database is None:
        yield f"Look around with `postroom demo --keep DIRECTORY`; see it again with `--seed {outcome.plan.seed}`."
        return
    command = f"postroom --store {url_of(database)}"
    yield "\n    ".join([f"Everything is in {database.parent}. Try:", *(f"{command} {rest}" for rest in COMMANDS)])
