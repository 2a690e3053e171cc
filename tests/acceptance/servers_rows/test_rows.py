"""Several relay processes with `claim="rows"`, uneven work, `kill -9` and SIGSTOP."""

from __future__ import annotations

from tests.acceptance.servers_rows.worker import Work
from tests.acceptance.servers_rows.workshop import BATCH, LEASE_TTL, Workshop
from tests.waiting import eventually

MOST_IN_FLIGHT = 2 * BATCH
"""What a relay hands over before it is answered."""
QUICK = Work()
SHORT = Work(seconds=0.005)


def test_two_relays_share_the_work_and_do_everything_once(workshop: Workshop) -> None:
    one, other = workshop.start(), workshop.start()
    ids = workshop.add_until(lambda: workshop.done(one) and workshop.done(other), [SHORT] * 20, keys=5)
    workshop.eventually_does(ids)
    assert workshop.done() == dict.fromkeys(ids, 1)


def test_one_slow_task_does_not_delay_the_others(workshop: Workshop) -> None:
    """Not even those that its own relay has claimed with it."""
    door = workshop.door()
    worker = workshop.start(lease_ttl=60, publish_timeout=30)
    slow, *others = workshop.add([Work(door=str(door)), *[QUICK] * 100])
    eventually(lambda: set(others) <= set(workshop.done()), otherwise=workshop.left)
    assert slow in workshop.begun(worker)
    assert slow not in workshop.done()
    door.touch()
    workshop.eventually_does([slow])
    assert workshop.done() == dict.fromkeys([slow, *others], 1)


def test_work_that_a_busy_relay_cannot_take_on_goes_to_another(workshop: Workshop) -> None:
    door = workshop.door()
    busy = workshop.start(lease_ttl=60, publish_timeout=30, batch_size=1, concurrency=1)
    stuck = workshop.add([Work(door=str(door))] * 20)
    eventually(lambda: workshop.begun(busy))
    free = workshop.start(lease_ttl=60, publish_timeout=30)
    eventually(lambda: workshop.begun(free))
    door.touch()
    workshop.eventually_does(stuck)
    assert workshop.done() == dict.fromkeys(stuck, 1)


def test_nothing_is_lost_when_a_relay_is_killed_and_only_what_it_had_in_hand_is_done_again(workshop: Workshop) -> None:
    victim, _ = workshop.start(), workshop.start()
    ids = workshop.add_until(lambda: len(workshop.done(victim)) >= 20, [SHORT] * 20, keys=7)
    victim.kill()
    in_hand = set(workshop.begun(victim))
    workshop.eventually_does(ids)
    repeated = {id for id, times in workshop.done().items() if times > 1}
    assert repeated <= in_hand
    assert len(repeated) <= MOST_IN_FLIGHT


def test_what_a_frozen_relay_says_too_late_has_no_effect(workshop: Workshop) -> None:
    """Another one has taken its message, and delivered it."""
    victim = workshop.start(concurrency=1)
    [id] = workshop.add([Work(frozen_by=victim.pid)])
    eventually(victim.is_frozen)
    healthy = workshop.start()
    workshop.eventually_does([id])
    healthy.stop()
    victim.thaw()
    more = workshop.add([QUICK] * 20)
    workshop.eventually_does(more)
    assert workshop.done() == dict.fromkeys([id, *more], 1)
    assert len(workshop.done(victim)) == 20, "it went on as if nothing had happened"


def test_a_relay_that_stops_gives_back_what_it_has_not_begun(workshop: Workshop) -> None:
    """The claims of this one would last for minutes."""
    door = workshop.door()
    stopped = workshop.start(lease_ttl=600, publish_timeout=200, concurrency=1, stop_timeout=100)
    ids = workshop.add([Work(door=str(door))] * 30)
    eventually(lambda: workshop.begun(stopped) and workshop.database.count("claims") > BATCH)
    stopped.ask_to_stop()
    door.touch()
    stopped.stop()
    workshop.start()
    workshop.eventually_does(ids)
    assert workshop.done() == dict.fromkeys(ids, 1)


def test_a_drain_waits_for_the_claims_of_a_relay_that_died(workshop: Workshop) -> None:
    door = workshop.door()
    victim = workshop.start(lease_ttl=LEASE_TTL)
    ids = workshop.add([Work(door=str(door))] * BATCH)
    eventually(lambda: len(workshop.begun(victim)) == BATCH)
    victim.kill()
    door.touch()
    report = workshop.drain()
    assert (report.delivered, report.pending) == (len(ids), 0)
