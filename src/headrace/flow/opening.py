"""What a flow goes on from: its generation, its last batch, and a checkpoint that belongs to both.

Everything that must fit is looked at before a row is read. What does not fit is never guessed around: the flow stays
where it is, and the error says what was found, what was expected, and the command that starts anew.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import APPEND_TIME, KEEP, ensure_declared, ensure_derived, ensure_letters
from headrace.client.progress_log import Progress, current, wait_until_decided
from headrace.client.reading import next_records
from headrace.flow.checkpoint import Checkpoint
from headrace.flow.checkpoint_folder import first_folder, newest_folder, take_folder
from headrace.flow.compiled import Compiled
from headrace.flow.errors import (
    CheckpointLost,
    CheckpointStale,
    FlowChanged,
    FlowNameTaken,
    InputGone,
    InputReplaced,
    OutputCompacted,
    TableRepartitioned,
    rebuild_hint,
)
from headrace.flow.fingerprint import is_comparable
from headrace.flow.options import FlowOptions
from headrace.flow.ownership import Ownership
from headrace.flow.resumption import expect_fit, last_progress, resume
from headrace.flow.writer import Side, Writer
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Driver, Generation, Input, encode
from headrace.model.schema_json import fields_to_json
from headrace.model.topic import Topic
from headrace.truth import expect_source_of_truth

__all__ = ["Opened", "expect_same_app", "log_topic", "next_offsets", "open_flow"]


@dataclass(slots=True)
class Opened:
    generation: Generation
    generation_offset: int
    last: Batch | None
    """The last batch that is committed."""
    owner_offset: int
    """Where in the progress the record is that names this driver."""
    checkpoint: str
    """Where it is, for a flow with state or in real time."""
    will_repeat: bool = False
    """Whether Spark runs that batch once more, because it was stopped before it noted it."""
    driver_id: str = ""


def log_topic(cluster: Cluster, app: App, topic: Topic) -> str:
    """What the log calls a topic of the app: the output of the generation that counts, where a flow writes it."""
    writer = app.writer_of(topic)
    if writer is None:
        return topic.name
    found = current(cluster, writer.progress_topic)
    return topic.name if found is None else found.generation.output


def open_flow(
    spark: SparkSession,
    cluster: Cluster,
    app: App,
    compiled: Compiled,
    writer: Writer,
    settings: FlowOptions,
    ownership: Ownership,
    *,
    rebuild: str = "",
) -> Opened:
    """``rebuild`` is the reason for a new generation, if one is asked for. When this returns, the log names this driver
    as the one that writes the flow.
    """
    flow = compiled.flow
    cluster.ensure_topic(flow.progress_topic, 1, {**KEEP, **APPEND_TIME})
    cluster.ensure_topic(flow.late_topic, 1, KEEP)
    # Nobody but this producer can write now: what was decided before it is seen from here on.
    wait_until_decided(cluster, flow.progress_topic)
    ownership.expect_ours()
    found = current(cluster, flow.progress_topic)
    expect_same_app(app, flow, found)
    if found is None or rebuild:
        reason = rebuild or "first start"
        opened = _begin(cluster, app, compiled, writer, settings, ownership.driver(), found, reason)
        ownership.claimed = True
        return opened
    _expect_same_function(compiled, found)
    _expect_same_inputs(cluster, app, compiled, found)
    ensure_letters(cluster, flow.dead_topic, [one.log for one in found.generation.inputs])
    _expect_uncompacted(cluster, found.generation)
    location = settings.checkpoint_of(flow.name, found.generation.checkpoint)
    folder = newest_folder(spark, location) if compiled.stateful else None
    if flow.is_realtime:
        _expect_reached(cluster, flow.name, found, Checkpoint(spark, location))
    elif compiled.stateful and found.last is not None:
        expect_fit(flow.name, found, found.last, Checkpoint(spark, folder or f"{location}.*"))
    offset = ownership.claim(writer, found)
    repeats = False
    if compiled.stateful:
        location = take_folder(spark, folder, ownership.expect_ours) if folder else first_folder(location)
        repeats = resume(flow.name, found, Checkpoint(spark, location))
    return Opened(
        found.generation, found.generation_offset, found.last, offset, location, repeats, ownership.id
    )


def _begin(
    cluster: Cluster,
    app: App,
    compiled: Compiled,
    writer: Writer,
    settings: FlowOptions,
    driver: Driver,
    before: Progress | None,
    reason: str,
) -> Opened:
    flow = compiled.flow
    number = 1 if before is None else before.generation.generation + 1
    output = flow.writes.name if number == 1 else f"{flow.writes.name}.g{number}"
    output_id = ensure_derived(cluster, flow.writes, output, settings.partitions)
    inputs = []
    for topic in flow.reads:
        log_name = log_topic(cluster, app, topic)
        topic_id = ensure_declared(cluster, topic, log_name, settings.partitions)
        expect_source_of_truth(log_name, cluster.configs(log_name), f"flow {flow.name}")
        starts = {str(partition): offset for partition, offset in cluster.starts(log_name).items()}
        inputs.append(Input(topic.name, log_name, topic_id, topic.kind, starts))
    ensure_letters(cluster, flow.dead_topic, [one.log for one in inputs])
    generation = Generation(
        app=app.name,
        flow=flow.name,
        generation=number,
        fingerprint=compiled.fingerprint,
        inputs=inputs,
        output=output,
        output_id=output_id,
        output_starts={str(p): end for p, end in cluster.ends(output, committed=False).items()},
        key=list(flow.writes.key),
        schema=fields_to_json(compiled.schema.fields),
        checkpoint=f"g{number}-{secrets.token_hex(6)}",
        started_ms=time.time_ns() // 1_000_000,
        reason=reason,
        latency=flow.latency,
        driver=driver,
    )
    _expect_uncompacted(cluster, generation)
    key, value = encode(generation)
    offset = writer.commit_alone(cluster, Side(flow.progress_topic, key, value))
    location = settings.checkpoint_of(flow.name, generation.checkpoint)
    checkpoint = first_folder(location) if compiled.stateful else location
    return Opened(generation, offset, None, offset, checkpoint, driver_id=driver.id)


def expect_same_app(app: App, flow: Flow, found: Progress | None) -> None:
    if found is not None and found.generation.app != app.name:
        raise FlowNameTaken(
            f"flow {flow.name} on this log belongs to app {found.generation.app}, and this is app {app.name}",
            detail=f"{flow.progress_topic} has generation {found.generation.generation} of app"
            f" {found.generation.app}",
            hint=f"give the flow of one of the two apps another name (name=...); if app {found.generation.app} was"
            " renamed, give it its old name again",
        )


def _expect_same_function(compiled: Compiled, found: Progress) -> None:
    name, before = compiled.flow.name, found.generation
    if before.latency != compiled.flow.latency:
        raise FlowChanged(
            f"flow {name} is declared with latency={compiled.flow.latency!r}, and generation {before.generation}, which"
            f" is there, has latency={before.latency!r}",
            detail="in batches a row is in its topic once, in real time at least once; a topic is one of them",
            hint=rebuild_hint(name),
        )
    if not is_comparable(before.fingerprint):
        raise FlowChanged(
            f"generation {before.generation} of flow {name} has a fingerprint of an older release, and this release"
            " computes fingerprints differently",
            detail=f"it has {before.fingerprint}, and the function now has {compiled.fingerprint}; whether the function"
            " changed cannot be told from them",
            hint=f"rebuild it once; {rebuild_hint(name)}",
        )
    if before.fingerprint != compiled.fingerprint:
        raise FlowChanged(
            f"flow {name} is not the function that derived what is there (generation {before.generation})",
            detail=f"its fingerprint was {before.fingerprint}, and is {compiled.fingerprint}",
            hint=rebuild_hint(name),
        )


def _expect_same_inputs(cluster: Cluster, app: App, compiled: Compiled, found: Progress) -> None:
    flow = compiled.flow
    known = {one.topic: one for one in found.generation.inputs}
    for topic in flow.reads:
        was = known[topic.name]
        now = log_topic(cluster, app, topic)
        if was.log != now:
            raise InputReplaced(
                f"flow {flow.name} reads {was.log}, and {topic.name} is now {now}",
                detail="the flow that writes it was rebuilt",
                hint=rebuild_hint(flow.name),
            )
        there = cluster.topic(now)
        if there is None or there.id != was.topic_id:
            raise InputReplaced(
                f"topic {now}, which flow {flow.name} reads, was deleted"
                + (" and made again" if there is not None else ""),
                detail=f"its id was {was.topic_id}" + (f", and is {there.id}" if there is not None else ""),
                hint=rebuild_hint(flow.name),
            )
        if topic.kind == "events":
            _expect_offsets(cluster, flow.name, now, was, found)
        elif there.partitions != len(was.starts):
            raise TableRepartitioned(flow.name, now, len(was.starts), there.partitions)


def _expect_offsets(cluster: Cluster, flow: str, log_name: str, was: Input, found: Progress) -> None:
    """The records that come next must still be there, and those that were read must have been."""
    starts, ends = cluster.starts(log_name), cluster.ends(log_name, committed=False)
    for number, offset in next_offsets(was, found.last, starts).items():
        start = starts[int(number)]
        if offset < start:
            raise InputGone(
                f"flow {flow} is at offset {offset} of {log_name}/{number}, which begins at {start}",
                detail=f"offsets {offset} to {start - 1} were deleted before the flow read them",
                hint=rebuild_hint(flow) + "; it will be without them",
            )
        if offset > ends[int(number)]:
            raise InputReplaced(
                f"flow {flow} has read {log_name}/{number} up to {offset}, and it ends at {ends[int(number)]}",
                detail="the log was set back, for example from an older backup",
                hint=rebuild_hint(flow),
            )


def next_offsets(was: Input, last: Batch | None, partitions: Iterable[int]) -> dict[str, int]:
    """Where the flow goes on in an input, for each of these partitions of the log. One that was added since the
    generation began is read from offset 0.
    """
    read = last.inputs.get(was.log, {}) if last else {}
    return {
        str(number): read[str(number)][1] if str(number) in read else was.starts.get(str(number), 0)
        for number in partitions
    }


def _expect_uncompacted(cluster: Cluster, generation: Generation) -> None:
    """Of rows that are written again, compaction keeps the last, which may be older than the one that counts."""
    policy = cluster.configs(generation.output).get("cleanup.policy") or ""
    if generation.latency == "realtime" and "compact" in policy:
        raise OutputCompacted(
            f"topic {generation.output}, which flow {generation.flow} writes in real time, has cleanup.policy={policy}",
            detail="a row that is written again would be kept in the place of a newer one of its key",
            hint=f"headrace topic alter {generation.output} --set cleanup.policy=delete, and"
            f" headrace flow rebuild APP {generation.flow}",
        )


def _expect_reached(cluster: Cluster, flow: str, found: Progress, checkpoint: Checkpoint) -> None:
    """What is noted in the log as done is done in the checkpoint; it may have done more. A note goes on over what holds
    no records, which Spark does not.
    """
    if found.last is None:
        return
    told = last_progress(found.generation, found.last)
    done = checkpoint.last_done() if checkpoint.exists() else None
    if done is None:
        raise CheckpointLost(
            f"the checkpoint of flow {flow} is not at {checkpoint.location}",
            detail=told,
            hint=f"put it back there, or say where it is (--data); else: {rebuild_hint(flow)}",
        )
    reached = checkpoint.planned_offsets(done) or {}
    for log, ranges in found.last.inputs.items():
        done_to = {int(number): reached.get(log, {}).get(number, 0) for number in ranges}
        if any(done_to[int(number)] < to for number, (_, to) in ranges.items()):
            done_to = next_records(cluster, log, done_to)
        if any(done_to[int(number)] < to for number, (_, to) in ranges.items()):
            raise CheckpointStale(
                f"the checkpoint of flow {flow} at {checkpoint.location} does not belong to what is in the log",
                detail=f"it has done its inputs up to {reached}; {told}",
                hint=f"restore the checkpoint of that moment; else: {rebuild_hint(flow)}",
            )
