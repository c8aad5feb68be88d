"""Drivers of flows that are killed or put to sleep inside a batch, or lose their broker there: a quick share of
``x6_driver``, ``x6_realtime``, ``x13_flow`` and ``x14_flow``.
"""

from __future__ import annotations

import random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.faults import x6_driver, x6_realtime, x13_flow, x14_flow
from bench.faults.apart import run_apart
from bench.faults.committed import committed
from bench.faults.flow_scene import Sales
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.workplace import workplace
from tests.crash.verdicts import expect_held

_OUTAGE_S = 2.0


def test_a_driver_killed_inside_a_batch_leaves_every_row_once() -> None:
    expect_held(run_apart(x6_driver, 2))


def test_a_driver_killed_in_real_time_repeats_rows_and_no_view_goes_back() -> None:
    expect_held(run_apart(x6_realtime, 2))


def test_a_sleeping_driver_is_fenced_and_nothing_of_it_is_committed() -> None:
    expect_held(run_apart(x13_flow, 1))


def test_flows_followers_and_a_server_outlast_a_broker_that_goes_inside_a_batch() -> None:
    expect_held(run_apart(x14_flow, 1, outage_s=_OUTAGE_S, rounds=1, weighed=False))


def test_rows_that_are_there_twice_and_not_at_all_are_counted() -> None:
    """The judge of these runs, on rows that no transaction holds together; ``make soak`` has drivers without one."""
    outcome = Outcome("X6", 1)
    with workplace("X6", 1) as home, log_server(home, 1, outcome) as bootstrap:
        sales = Sales(bootstrap, random.Random(1))
        sales.send(5)
        topics = ("kept", "sums", "keep.progress", "sum_up.progress")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(one, 1) for one in topics]).values():
            future.result(30)
        rows = committed(bootstrap, "sales")
        producer = Producer({"bootstrap.servers": bootstrap})
        for row in (*rows[:-1], rows[0]):
            producer.produce("kept", row.value(), row.key())
        assert producer.flush(30) == 0
        sales.judge(outcome)
    assert (outcome.lost, outcome.duplicated) == (1, 1)
    assert "sums are wrong" in outcome.problems[0]
    assert not outcome.held
