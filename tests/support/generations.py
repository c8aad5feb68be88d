"""Writes the rows and progress records of a flow's generations as their drivers would, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_derived
from headrace.client.generations import transactional_id_of
from headrace.client.progress import current, wait_until_decided
from headrace.client.transactional_writer import OutgoingRecord, TransactionalWriter
from headrace.model.declarations import Flow
from headrace.model.generations import Entry
from headrace.model.progress import Batch, Generation, Input, encode
from headrace.model.schema import fields_to_json

__all__ = ["begin_deriving", "derive_batch", "first_entry"]


def first_entry(flow: Flow) -> Entry:
    return Entry(1, flow.progress_topic, flow.writes.name, "old", "first start", 1)


def begin_deriving(
    cluster: Cluster, app: str, flow: Flow, entry: Entry, reads: str = "", *, updates: bool = False
) -> None:
    """Write the record of the generation. It reads one topic, ``reads`` (default: the last input of the flow)."""
    cluster.ensure_topic(entry.progress, 1)
    topic = flow.reads[-1]
    source = cluster.ensure_topic(reads or topic.name, 1)
    assert flow.writes.schema is not None
    generation = Generation(
        app=app,
        flow=flow.name,
        generation=entry.number,
        fingerprint=entry.fingerprint,
        inputs=[Input(topic.name, source.name, source.id, topic.kind, {"0": 0})],
        output=entry.topic,
        output_id=ensure_derived(cluster, flow.writes, entry.topic, 1),
        key=list(flow.writes.key),
        schema=fields_to_json(flow.writes.schema.fields),
        checkpoint="g",
        started_ms=1,
        output_starts={"0": 0},
        updates=updates,
    )
    writer = TransactionalWriter(cluster, transactional_id_of(flow, entry), "a test")
    writer.commit_record(OutgoingRecord(entry.progress, *encode(generation)))
    writer.close()
    # A commit is confirmed a moment before readers see its records.
    wait_until_decided(cluster, entry.progress)


def derive_batch(
    cluster: Cluster, flow: Flow, entry: Entry, rows: Mapping[str, Any], read: int | None = None
) -> Batch:
    """Write the rows (key to value) and the record of a batch that has read the input up to offset ``read`` (default:
    its end).
    """
    progress = current(cluster, entry.progress)
    assert progress is not None, "begin_deriving comes first"
    (source,) = progress.generation.inputs
    end = cluster.ends(source.log)[0] if read is None else read
    start = progress.last.inputs[source.log]["0"][1] if progress.last is not None else 0
    writer = TransactionalWriter(cluster, transactional_id_of(flow, entry), "a test")
    writer.begin()
    before = cluster.ends(entry.topic, committed=False)[0]
    writer.send_rows(entry.topic, list(rows), [json.dumps(value) for value in rows.values()])
    writer.flush()
    batch = Batch(
        flow.name,
        entry.number,
        0 if progress.last is None else progress.last.batch + 1,
        {source.log: {"0": (start, end)}},
        {},
        {entry.topic: {"0": (before, cluster.ends(entry.topic, committed=False)[0])}},
        None,
        None,
        {},
        len(rows),
        len(rows),
        0,
        0,
        entry.fingerprint,
        generation_offset=progress.generation_offset,
    )
    writer.send([OutgoingRecord(entry.progress, *encode(batch))])
    writer.flush()
    writer.commit()
    writer.close()
    for topic in (entry.progress, entry.topic):
        wait_until_decided(cluster, topic)
    return batch
