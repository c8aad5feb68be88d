"""The producer of a flow when the log is slow, or has given its transaction up."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from pathlib import Path

import pytest

from bench.faults.committed import committed
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.flow.errors import ProducerFenced
from headrace.flow.writer import Writer
from tests.support.embedded import start_headrace
from tests.support.flows import FlowWorld


def _write_for_a_while(writer: Writer, topic: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        writer.rows(topic, ["k"], ["v"])
        writer.flush()
        time.sleep(0.5)


def test_more_rows_than_the_queue_holds_are_all_sent_once(flow_world: FlowWorld) -> None:
    topic = f"rows-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(flow_world.cluster.bootstrap, {"queue.buffering.max.messages": "10"})
    cluster.ensure_topic(topic, 1)
    writer = Writer(cluster, "f", topic)
    writer.begin()
    writer.rows(topic, [f"k{number}" for number in range(500)], ["v"] * 500)
    writer.flush()
    writer.commit()
    writer.close()
    found = [one.key() for one in committed(cluster.bootstrap, topic)]
    assert found == [b"k%d" % number for number in range(500)]


def test_rows_for_a_transaction_that_the_log_has_given_up_are_refused_with_the_reason(
    flow_world: FlowWorld,
) -> None:
    topic = f"rows-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(topic, 1)
    writer = Writer(flow_world.cluster, "f", topic, timeout_ms=1_000)
    writer.begin()
    with pytest.raises(ProducerFenced) as refused:
        _write_for_a_while(writer, topic)
    assert refused.value.open_ms > 1_000
    assert refused.value.retriable
    writer.close()
    assert committed(flow_world.cluster.bootstrap, topic) == []


def test_rows_that_a_silent_log_did_not_take_in_time_are_a_reason_to_begin_again(tmp_path: Path) -> None:
    server = start_headrace(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        cluster = Cluster(server.bootstrap)
        cluster.ensure_topic("rows", 1)
        writer = Writer(cluster, "f", "f", timeout_ms=2_000)
        stack.callback(writer.close)
        writer.begin()
        server.process.send_signal(signal.SIGSTOP)
        stack.callback(server.process.send_signal, signal.SIGCONT)
        writer.rows("rows", ["k"] * 3, ["v"] * 3)
        writer.flush()
        with pytest.raises(LogError) as stopped:
            writer.commit()
    assert stopped.value.retriable
    assert stopped.value.code == "HR-KAFKA-MSG_TIMED_OUT"
