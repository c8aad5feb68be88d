"""Drivers of flows that are killed or paused inside a batch, or lose their broker there: a few runs of ``driver_kill``,
``realtime_driver_kill``, ``zombie_driver`` and ``broker_outage``.
"""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from faults.committed_records import committed
from faults.flows import broker_outage, driver_kill, realtime_driver_kill, zombie_driver
from faults.flows.scene import Sales
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.run_process import run_in_process
from faults.servers.log_server import log_server
from tests.crash.verdicts import expect_no_problems

_OUTAGE_S = 2.0


def test_each_row_exists_once_after_a_driver_is_killed_inside_a_batch() -> None:
    expect_no_problems(run_in_process(driver_kill, 2))


@pytest.mark.soak
def test_a_killed_realtime_driver_may_repeat_rows_but_no_view_shows_older_ones_again() -> None:
    expect_no_problems(run_in_process(realtime_driver_kill, 2))


@pytest.mark.soak
def test_a_replaced_driver_is_fenced_and_commits_no_row() -> None:
    expect_no_problems(run_in_process(zombie_driver, 1))


@pytest.mark.soak
def test_flows_followers_and_a_server_survive_a_broker_outage_inside_a_batch() -> None:
    expect_no_problems(run_in_process(broker_outage, 1, outage_s=_OUTAGE_S, rounds=1, weighed=False))


def test_the_oracle_counts_duplicate_and_missing_rows() -> None:
    """The rows are written without a transaction, as the unprotected drivers do in ``make soak``."""
    outcome = Outcome("X6", 1)
    with run_directory("X6", 1) as home, log_server(home, 1, outcome) as bootstrap:
        sales = Sales(bootstrap, random.Random(1))
        sales.send(5)
        topics = ("kept", "sums", "sales.keep.progress", "sales.sum_up.progress")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
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
