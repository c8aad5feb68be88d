"""The state from which a flow resumes: its generation, its last batch, and a checkpoint that matches both.

``open_flow`` checks all three before a record is read. It never repairs a mismatch by guessing. The flow does not
start, and the error reports the actual state, the expected state, and the command that starts a new generation.

For a batch N of a flow with state, the checkpoint has these files, in the order in which Spark writes them:

    offsets/N           the plan: the end offsets of the batch's inputs
    state/…/(N+1).*     the state after the batch
    commits/N           marks the batch as finished; written after the log has committed the batch

If a batch has no progress record, its files are from a failed attempt: Spark may replace the plan by a smaller plan,
and writes the state again. A power loss can damage files that were not synced yet; ``headrace.flow.spark.checkpoint``
lists these files. If a plan or a commit file is unreadable for this reason, Spark plans or runs that batch again. Any
other mismatch with the progress records stops the flow.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import (
    APPEND_TIME,
    KEEP,
    ensure_dead_letter_topic,
    ensure_declared,
    ensure_derived,
)
from headrace.client.progress import Progress, current, wait_until_decided
from headrace.client.records import next_records
from headrace.client.transactional_writer import OutgoingRecord, TransactionalWriter
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.fingerprint import is_comparable
from headrace.flow.context import FlowContext
from headrace.flow.deleted_heads import find_deleted_heads
from headrace.flow.errors import (
    CheckpointLost,
    CheckpointStale,
    FlowChanged,
    FlowNameTaken,
    InputDeleted,
    InputReplaced,
    OutputCompacted,
    TableRepartitioned,
    rebuild_hint,
)
from headrace.flow.ownership import Ownership
from headrace.flow.spark.checkpoint import Checkpoint, first_folder, newest_folder, take_folder
from headrace.model.declarations import Flow, Topic
from headrace.model.progress import Batch, Driver, Generation, Input, Ranges, encode
from headrace.model.schema import fields_to_json
from headrace.truth import expect_source_of_truth

__all__ = [
    "FlowState",
    "cut_plan",
    "expect_same_app",
    "last_progress",
    "log_topic",
    "next_offsets",
    "open_flow",
]


@dataclass(slots=True)
class FlowState:
    generation: Generation
    generation_offset: int
    last: Batch | None
    """The last committed batch."""
    owner_offset: int
    """The offset of the progress record that names this driver."""
    checkpoint: str
    """The location of the checkpoint, for a flow with state or in real time."""
    will_repeat: bool = False
    """Whether Spark repeats the last batch, because it stopped before it wrote the commit file."""
    driver_id: str = ""


def log_topic(cluster: Cluster, app: App, topic: Topic) -> str:
    """Return the name of a topic in the log. For a derived topic, this is the output of the current generation."""
    writer = app.writer_of(topic)
    if writer is None:
        return topic.name
    progress = current(cluster, writer.progress_topic)
    return topic.name if progress is None else progress.generation.output


def open_flow(
    context: FlowContext, writer: TransactionalWriter, ownership: Ownership, *, rebuild: str = ""
) -> FlowState:
    """Open the flow. Afterwards, the newest progress record names this driver as the owner of the flow.

    If ``rebuild`` is not empty, it is the reason for a new generation.
    """
    spark, cluster, app = context.spark, context.cluster, context.app
    compiled, options = context.compiled, context.options
    flow = compiled.flow
    cluster.ensure_topic(flow.progress_topic, 1, {**KEEP, **APPEND_TIME})
    cluster.ensure_topic(flow.late_topic, 1, KEEP)
    # Opening the writer fenced all earlier drivers. Wait until their transactions are committed or aborted.
    wait_until_decided(cluster, flow.progress_topic)
    ownership.expect_current_owner()
    progress = current(cluster, flow.progress_topic)
    expect_same_app(app, flow, progress)
    if progress is None or rebuild:
        reason = rebuild or "first start"
        state = _begin(context, writer, ownership.driver(), progress, reason)
        ownership.claimed = True
        return state
    _expect_same_function(compiled, progress)
    _expect_same_inputs(cluster, app, compiled, progress)
    ensure_dead_letter_topic(cluster, flow.dead_topic, [source.log for source in progress.generation.inputs])
    _expect_uncompacted(cluster, progress.generation)
    location = options.checkpoint_of(flow.name, progress.generation.checkpoint)
    folder = newest_folder(spark, location) if compiled.stateful else None
    if flow.is_realtime:
        _expect_processed(cluster, flow.name, progress, Checkpoint(spark, location))
    elif compiled.stateful and progress.last is not None:
        _expect_match(flow.name, progress, progress.last, Checkpoint(spark, folder or f"{location}.*"))
    offset = ownership.claim(writer, progress)
    repeats = False
    if compiled.stateful:
        location = (
            take_folder(spark, folder, ownership.expect_current_owner) if folder else first_folder(location)
        )
        repeats = _resume(flow.name, progress, Checkpoint(spark, location))
    return FlowState(
        progress.generation,
        progress.generation_offset,
        progress.last,
        offset,
        location,
        repeats,
        ownership.id,
    )


def _begin(
    context: FlowContext, writer: TransactionalWriter, driver: Driver, previous: Progress | None, reason: str
) -> FlowState:
    cluster, app, compiled, options = context.cluster, context.app, context.compiled, context.options
    flow = compiled.flow
    number = 1 if previous is None else previous.generation.generation + 1
    output = flow.writes.name if number == 1 else f"{flow.writes.name}.g{number}"
    output_id = ensure_derived(cluster, flow.writes, output, options.partitions)
    inputs = []
    for topic in flow.reads:
        log_name = log_topic(cluster, app, topic)
        topic_id = ensure_declared(cluster, topic, log_name, options.partitions)
        expect_source_of_truth(log_name, cluster.configs(log_name), f"flow {flow.name}")
        starts = {str(partition): offset for partition, offset in cluster.starts(log_name).items()}
        rejects_late = compiled.late in ("drop", "side") and topic.name in flow.late_policies
        deleted = find_deleted_heads(cluster, app, log_name, topic_id, starts) if rejects_late else {}
        inputs.append(Input(topic.name, log_name, topic_id, topic.kind, starts, deleted))
    ensure_dead_letter_topic(cluster, flow.dead_topic, [source.log for source in inputs])
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
        late=compiled.late,
        driver=driver,
    )
    _expect_uncompacted(cluster, generation)
    key, value = encode(generation)
    offset = writer.commit_record(OutgoingRecord(flow.progress_topic, key, value))
    location = options.checkpoint_of(flow.name, generation.checkpoint)
    checkpoint = first_folder(location) if compiled.stateful else location
    return FlowState(generation, offset, None, offset, checkpoint, driver_id=driver.id)


def expect_same_app(app: App, flow: Flow, progress: Progress | None) -> None:
    if progress is not None and progress.generation.app != app.name:
        raise FlowNameTaken(
            f"flow {flow.name} on this log belongs to app {progress.generation.app}, but this app is {app.name}",
            detail=f"{flow.progress_topic} has generation {progress.generation.generation} of app"
            f" {progress.generation.app}",
            hint="use another name for the flow in one of the two apps (name=...);"
            f" if app {progress.generation.app} was renamed, change its name back",
        )


def _expect_same_function(compiled: Compiled, progress: Progress) -> None:
    name, previous = compiled.flow.name, progress.generation
    if previous.latency != compiled.flow.latency:
        raise FlowChanged(
            f"flow {name} is declared with latency={compiled.flow.latency!r}, but the current generation"
            f" {previous.generation} has latency={previous.latency!r}",
            detail="a batch flow writes each row once, a real-time flow at least once; a topic cannot have both",
            hint=rebuild_hint(name),
        )
    if not is_comparable(previous.fingerprint):
        raise FlowChanged(
            f"generation {previous.generation} of flow {name} has a fingerprint of an older release, and this release"
            " computes fingerprints differently",
            detail=f"the fingerprint was {previous.fingerprint} and is now {compiled.fingerprint}; they do not show"
            " whether the function changed",
            hint=f"rebuild the flow once; {rebuild_hint(name)}",
        )
    if previous.late != compiled.late:
        declared = f"late={compiled.late!r}" if compiled.late else "no event time"
        earlier = f"late={previous.late!r}" if previous.late else "the rules of an earlier release"
        raise FlowChanged(
            f"flow {name} treats late events with {declared}, but generation {previous.generation} was derived with"
            f" {earlier}",
            detail="all rows of a generation must come from the same rules",
            hint=rebuild_hint(name),
        )
    if previous.fingerprint != compiled.fingerprint:
        raise FlowChanged(
            f"flow {name} is not the function that derived generation {previous.generation}",
            detail=f"the fingerprint was {previous.fingerprint} and is now {compiled.fingerprint}",
            hint=rebuild_hint(name),
        )


def _expect_same_inputs(cluster: Cluster, app: App, compiled: Compiled, progress: Progress) -> None:
    flow = compiled.flow
    recorded_inputs = {source.topic: source for source in progress.generation.inputs}
    for topic in flow.reads:
        recorded = recorded_inputs[topic.name]
        current_log = log_topic(cluster, app, topic)
        if recorded.log != current_log:
            raise InputReplaced(
                f"flow {flow.name} reads {recorded.log}, but topic {topic.name} is now {current_log}",
                detail="the flow that writes the topic was rebuilt",
                hint=rebuild_hint(flow.name),
            )
        current_topic = cluster.topic(current_log)
        if current_topic is None or current_topic.id != recorded.topic_id:
            raise InputReplaced(
                f"topic {current_log}, which flow {flow.name} reads, was deleted"
                + (" and created again" if current_topic is not None else ""),
                detail=f"the topic id was {recorded.topic_id}"
                + (f" and is now {current_topic.id}" if current_topic is not None else ""),
                hint=rebuild_hint(flow.name),
            )
        if topic.kind == "events":
            _expect_offsets(cluster, flow.name, current_log, recorded, progress)
        elif current_topic.partitions != len(recorded.starts):
            raise TableRepartitioned(flow.name, current_log, len(recorded.starts), current_topic.partitions)


def _expect_offsets(cluster: Cluster, flow: str, log_name: str, recorded: Input, progress: Progress) -> None:
    """Raise if the next records were deleted, or if the log ends before the records that were read."""
    starts, ends = cluster.starts(log_name), cluster.ends(log_name, committed=False)
    for number, offset in next_offsets(recorded, progress.last, starts).items():
        start = starts[int(number)]
        if offset < start:
            raise InputDeleted(
                f"flow {flow} is at offset {offset} of {log_name}/{number}, which starts at {start}",
                detail=f"offsets {offset} to {start - 1} were deleted before the flow read them",
                hint=rebuild_hint(flow) + "; it will not include the deleted records",
            )
        if offset > ends[int(number)]:
            raise InputReplaced(
                f"flow {flow} has read {log_name}/{number} up to offset {offset}, but the partition ends at"
                f" {ends[int(number)]}",
                detail="the log was reset, for example by restoring an older backup",
                hint=rebuild_hint(flow),
            )


def next_offsets(recorded: Input, last: Batch | None, partitions: Iterable[int]) -> dict[str, int]:
    """Return the next offset of an input for each partition. A partition that was added after the start of the
    generation is read from offset 0.
    """
    read = last.inputs.get(recorded.log, {}) if last else {}
    return {
        str(number): read[str(number)][1] if str(number) in read else recorded.starts.get(str(number), 0)
        for number in partitions
    }


def _expect_uncompacted(cluster: Cluster, generation: Generation) -> None:
    """Raise if a real-time flow's output is compacted. Compaction retains the last row of a key, and a repeated row
    can be last although it is older.
    """
    policy = cluster.configs(generation.output).get("cleanup.policy") or ""
    if generation.latency == "realtime" and "compact" in policy:
        raise OutputCompacted(
            f"topic {generation.output}, which flow {generation.flow} writes in real time, has cleanup.policy={policy}",
            detail="compaction could retain a repeated row instead of a newer row of its key",
            hint=f"run headrace topic alter {generation.output} --set cleanup.policy=delete, then"
            f" headrace flow rebuild APP {generation.flow}",
        )


def _expect_processed(cluster: Cluster, flow: str, progress: Progress, checkpoint: Checkpoint) -> None:
    """Raise if the checkpoint of a real-time flow is behind the progress records. Progress records also cover offsets
    without records, and Spark's offsets do not.
    """
    if progress.last is None:
        return
    progress_text = last_progress(progress.generation, progress.last)
    done = checkpoint.last_done() if checkpoint.exists() else None
    if done is None:
        raise CheckpointLost(
            f"the checkpoint of flow {flow} does not exist at {checkpoint.location}",
            detail=progress_text,
            hint=f"restore it, or set the data directory that contains it (--data); otherwise {rebuild_hint(flow)}",
        )
    planned_ends = checkpoint.planned_offsets(done) or {}
    for log, ranges in progress.last.inputs.items():
        processed_to = {int(number): planned_ends.get(log, {}).get(number, 0) for number in ranges}
        if any(processed_to[int(number)] < to for number, (_, to) in ranges.items()):
            processed_to = next_records(cluster, log, processed_to)
        if any(processed_to[int(number)] < to for number, (_, to) in ranges.items()):
            raise CheckpointStale(
                f"the checkpoint of flow {flow} at {checkpoint.location} does not match the log",
                detail=f"the checkpoint has processed the inputs up to {planned_ends}; {progress_text}",
                hint=f"restore the checkpoint that belongs to this log; otherwise {rebuild_hint(flow)}",
            )


def last_progress(generation: Generation, last: Batch | None) -> str:
    batch = f"batch {last.batch}, inputs {last.inputs}" if last else "no batch"
    return f"the last progress record in the log has generation {generation.generation}, {batch}"


@dataclass(frozen=True, slots=True)
class _CheckpointFit:
    done: int
    """The last batch that Spark has finished; -1 if it has finished no batch."""
    commit_is_torn: bool
    """Whether the commit file of the next batch exists but is unreadable."""
    repeats: bool
    """Whether the next batch is already committed in the log."""


def _expect_match(flow: str, progress: Progress, last: Batch, checkpoint: Checkpoint) -> _CheckpointFit:
    """Raise ``CheckpointLost`` or ``CheckpointStale`` if the checkpoint does not match. Does not change it."""
    number = last.batch
    progress_text = last_progress(progress.generation, last)
    if not checkpoint.exists():
        raise CheckpointLost(
            f"the checkpoint of flow {flow} does not exist at {checkpoint.location}",
            detail=progress_text,
            hint=f"restore it, or set the data directory that contains it (--data); otherwise {rebuild_hint(flow)}",
        )
    last_done, planned = checkpoint.last_done(), checkpoint.last_planned()
    done = -1 if last_done is None else last_done
    commit_is_torn = done >= 0 and not checkpoint.is_done(done)
    if commit_is_torn:
        done -= 1
    repeats = done == number - 1
    ends = _ends(last)
    if not (repeats or done >= number) or checkpoint.planned_offsets(number if repeats else done) != ends:
        raise CheckpointStale(
            f"the checkpoint of flow {flow} at {checkpoint.location} does not match the log",
            detail=f"the last planned batch is {planned}, the last finished batch is {last_done}; {progress_text}",
            hint=f"restore the checkpoint that belongs to this log; otherwise {rebuild_hint(flow)}",
        )
    return _CheckpointFit(done, commit_is_torn, repeats)


def _resume(flow: str, progress: Progress, checkpoint: Checkpoint) -> bool:
    """Remove files of failed attempts from the checkpoint. Returns whether Spark will repeat the last batch."""
    if progress.last is None:
        checkpoint.remove()
        return False
    checkpoint_fit, ends = _expect_match(flow, progress, progress.last, checkpoint), _ends(progress.last)
    done = checkpoint_fit.done
    if checkpoint_fit.commit_is_torn:
        checkpoint.forget_done(done + 1)
    for batch in checkpoint.plans():
        # A plan that a power loss truncated can lack an input.
        planned_ends = checkpoint.planned_offsets(batch) if batch == done + 1 else None
        if batch > done and (planned_ends is None or planned_ends.keys() != ends.keys()):
            checkpoint.forget_plan(batch)
    # If the commit file of the next batch is torn, Spark may already have written state of the batch after
    # it.
    for batch in (done + 1, done + 2):
        checkpoint.forget_state(batch)
    return checkpoint_fit.repeats


def _ends(last: Batch) -> dict[str, dict[str, int]]:
    return {
        topic: {number: to for number, (_, to) in ranges.items()} for topic, ranges in last.inputs.items()
    }


def cut_plan(checkpoint: Checkpoint, batch: int, ranges: Ranges, rows_max: int) -> None:
    """Remove the plan of an uncommitted batch if it exceeds ``rows_max``, so that Spark plans a smaller batch."""
    if any(sum(high - low for low, high in parts.values()) > rows_max for parts in ranges.values()):
        checkpoint.forget_plan(batch)
