"""The transactional writer when the log is slow, or has aborted the transaction."""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.committed_records import committed
from faults.flows.world import FlowWorld
from faults.servers.headrace_broker import start_headrace
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.transactional_writer import BULK, OutgoingRecord, TransactionalWriter, WriterRefused


def _write_for_a_while(writer: TransactionalWriter, topic: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        writer.send_rows(topic, ["k"], ["v"])
        writer.flush()
        time.sleep(0.5)


def _client_threads() -> set[int]:
    """The ids of librdkafka's threads in this process."""
    names = {path.parent.name: path for path in Path("/proc/self/task").glob("*/comm")}
    found = set()
    for thread, path in names.items():
        with contextlib.suppress(OSError):
            if path.read_text().startswith("rdk:"):
                found.add(int(thread))
    return found


def test_a_closed_writer_leaves_no_threads_even_while_its_error_is_kept(flow_world: FlowWorld) -> None:
    name = f"id-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(name, 1)
    before = _client_threads()
    writer = TransactionalWriter(flow_world.cluster, name, "flow f", timeout_ms=1_000)
    threads = _client_threads() - before
    assert threads
    writer.begin()
    with pytest.raises(WriterRefused) as refused:
        _write_for_a_while(writer, name)
    writer.close()
    until(lambda: not threads & _client_threads(), "the threads of the closed writer end", timeout_s=30)
    assert refused.value.__traceback__ is not None


def test_a_closed_writer_refuses_every_call_but_close_and_abort(flow_world: FlowWorld) -> None:
    name = f"id-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(name, 1)
    writer = TransactionalWriter(flow_world.cluster, name, "flow f")
    writer.begin()
    writer.send_rows(name, ["k"], ["v"])
    writer.close()
    record = OutgoingRecord(name, b"k", b"v")
    calls: list[Callable[[], object]] = [
        writer.begin,
        writer.flush,
        writer.commit,
        lambda: writer.send_rows(name, ["k"], ["v"]),
        lambda: writer.send([record]),
        lambda: writer.deliver(record),
    ]
    for call in calls:
        with pytest.raises(LogError) as closed:
            call()
        assert (closed.value.code, closed.value.retriable) == ("HR-KAFKA-CLIENT_CLOSED", False)
    writer.abort(purge=True)
    writer.close()
    TransactionalWriter(flow_world.cluster, name, "flow f").close()
    assert committed(flow_world.cluster.bootstrap, name) == []


def test_more_rows_than_the_queue_holds_are_all_sent_once(flow_world: FlowWorld) -> None:
    topic = f"rows-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(flow_world.cluster.bootstrap, {"queue.buffering.max.messages": "10"})
    cluster.ensure_topic(topic, 1)
    writer = TransactionalWriter(cluster, topic, "flow f", properties=BULK)
    writer.begin()
    writer.send_rows(topic, [f"k{number}" for number in range(500)], ["v"] * 500)
    writer.flush()
    writer.commit()
    writer.close()
    found = [record.key() for record in committed(cluster.bootstrap, topic)]
    assert found == [b"k%d" % number for number in range(500)]


def test_rows_for_a_timed_out_transaction_are_refused_with_the_reason(
    flow_world: FlowWorld,
) -> None:
    topic = f"rows-{uuid.uuid4().hex[:8]}"
    flow_world.cluster.ensure_topic(topic, 1)
    writer = TransactionalWriter(flow_world.cluster, topic, "flow f", timeout_ms=1_000)
    writer.begin()
    with pytest.raises(WriterRefused) as refused:
        _write_for_a_while(writer, topic)
    assert refused.value.open_ms > 1_000
    assert refused.value.retriable
    writer.close()
    assert committed(flow_world.cluster.bootstrap, topic) == []


def test_rows_that_a_silent_log_does_not_accept_in_time_raise_a_retriable_error(tmp_path: Path) -> None:
    server = start_headrace(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        cluster = Cluster(server.bootstrap)
        cluster.ensure_topic("rows", 1)
        writer = TransactionalWriter(cluster, "f", "flow f", timeout_ms=2_000)
        stack.callback(writer.close)
        writer.begin()
        server.process.send_signal(signal.SIGSTOP)
        stack.callback(server.process.send_signal, signal.SIGCONT)
        writer.send_rows("rows", ["k"] * 3, ["v"] * 3)
        writer.flush()
        with pytest.raises(LogError) as stopped:
            writer.commit()
    assert stopped.value.retriable
    assert stopped.value.code == "HR-KAFKA-MSG_TIMED_OUT"
