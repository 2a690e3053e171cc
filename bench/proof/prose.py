"""The frame of the page: words that claim nothing about figures."""

HEAD = """\
# Proof

What we say of Postroom, measured. `make proof` makes every run that is listed [below](#runs), keeps what it said in
`docs/explanation/proof/results`, and writes this page from that. No figure on it is typed by hand, and a test compares
the page with the results. A run that failed is shown as failed, and one that is missing as missing.

```sh
make proof                              # everything: takes hours
make proof ARGS="--only 'bench-*'"      # a part
make proof ARGS=--quick                 # a short look at what was not made in full
make proof ARGS=--missing               # what has no report yet: not made, or failed
make proof ARGS=--render                # no run, only the page
```

The list of [runs](#runs) says which machine each was made on, and of which revision: what has changed since is not in
it. To compare, take the ratios: ours and the reference are measured in turn, in one run, unless the reference is a
limit or a setting and not a measurement."""

CHAOS = """\
Real processes and servers are killed, frozen and cut off, as a seed decides, and a judge compares what was committed
with what arrived: see [chaos](chaos.md) for the faults and for what each column means. A run that breaks a promise says
so in the last column."""

RECOVERIES = """\
The faults of all these runs together. The times are seconds from the end of a fault until all that had been committed
by then had arrived. They are known of those faults alone before whose recovery no other began, which is after 1 to 5
seconds: a slow recovery is most likely not among them. The longest wait in peace above tells
more of those: all the time that one message waited while nothing was broken that might have kept it, taken together."""

BROKEN = """\
The same chaos, with relays that are [broken in one way each](chaos.md#it-can-fail). Here the judge must find what that
way leads to; if it does not, it is the judge that fails."""

STORE = """\
Ours and the reference are measured in turn, and the figures are medians. The ratio is ours by the reference. Where that
is a limit (`idle`, `memory`) or a setting (`latency` on other stores than PostgreSQL), only ours is measured."""

BROKERS = """\
From PostgreSQL to each broker, against a loop over that broker's client alone, which reads no database; and against the
loop that one would write instead (`ownloop`). `hotpublish` is `publish` with all messages in one key. All work on the
same cores. Ours is timed without its start: from when all is delivered that had been read before the first delivery. A
ratio above 1 says that the bare loop does not get the best out of its client, not that reading a database costs
nothing."""

PEERS = """\
Other systems and ours, on the same machine and one server, with a database each. How they are set up, and how to repeat
this, is in [peers](peers.md). It is said who is first, whoever it is. Two are within each other's spread if the ranges
of their rounds overlap."""
