from __future__ import annotations

import pytest

from chaos.plan import BROKER, DATABASE, DESTINATIONS, SECONDS, STORES, Destination, Store, draw, kinds


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("to", DESTINATIONS)
def test_a_seed_draws_the_same_faults_again_and_another_one_others(store: Store, to: Destination) -> None:
    assert draw(1, store, to, 300) == draw(1, store, to, 300)
    assert draw(1, store, to, 300).faults != draw(2, store, to, 300).faults


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("to", DESTINATIONS)
def test_five_minutes_have_every_kind_that_there_can_be_and_no_other(store: Store, to: Destination) -> None:
    for seed in range(20):
        assert {fault.kind for fault in draw(seed, store, to, 300).faults} == set(kinds(store, to))


def test_a_file_has_no_broker_and_sqlite_has_no_server_to_break() -> None:
    assert not {*DATABASE, *BROKER} & {*kinds("sqlite", "file")}
    assert {*DATABASE, *BROKER} <= {*kinds("postgresql", "kafka")}


def test_faults_begin_in_order_and_are_over_in_time() -> None:
    for seed in range(20):
        faults = draw(seed, "mysql", "amqp", 120).faults
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert all(fault.at + fault.seconds <= 120 for fault in faults)
        assert all(low <= fault.seconds <= high for fault in faults for low, high in [SECONDS.get(fault.kind, (0, 0))])
