"""The state from which a flow resumes: its generation, its last batch, and a checkpoint that matches both.

``open_flow`` checks all three before a record is read. It never repairs a mismatch by guessing. The flow does not
start, and the error reports the actual state, the expected state, and the command that starts a new generation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from headrace.app import App
from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import (
    APPEND_TIME,
    KEEP,
    ensure_dead_letter_topic,
    ensure_declared,
    ensure_derived,
)
from headrace.client.generations import generations_of
from headrace.client.progress import Progress, current, wait_until_decided
from headrace.client.transactional_writer import OutgoingRecord, TransactionalWriter
from headrace.flow.checkpoint_fit import clean_up, expect_match, expect_processed
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.fingerprint import is_comparable
from headrace.flow.compile.flow_digest import describe_changes
from headrace.flow.context import FlowContext
from headrace.flow.deleted_heads import find_deleted_heads
from headrace.flow.errors import (
    FlowChanged,
    InputDeleted,
    InputReplaced,
    OutputCompacted,
    SwitchUnderWay,
    TableRepartitioned,
    rebuild_hint,
)
from headrace.flow.ownership import Ownership, claim_topic, expect_owner
from headrace.flow.spark.checkpoint import Checkpoint, first_folder, newest_folder, take_folder
from headrace.flow.upstream import find_upstream, newest_topic, why_unreadable
from headrace.model.declarations import Flow
from headrace.model.generations import Entry
from headrace.model.progress import Batch, Driver, Generation, Input, encode
from headrace.model.schema import fields_to_json
from headrace.truth import expect_source_of_truth

__all__ = [
    "FlowState",
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
    progress_topic: str = ""
    stable: str = ""
    """The stable topic, if the generation serves and its own topic is another one: it then writes each row to both.
    Else empty.
    """
    is_serving: bool = True
    stable_ends: dict[str, int] = field(default_factory=dict)
    """The end offsets of the stable topic after the last batch; empty before the first batch of this driver."""
    is_kept: bool = False
    """Whether the generation served before."""


def open_flow(
    context: FlowContext, writer: TransactionalWriter, ownership: Ownership, entry: Entry
) -> FlowState:
    """Open a generation. Afterwards, its newest progress record names this driver as the owner.

    If the generation has no progress record yet, it begins now. If the flow switched to another generation or back
    since the generation was opened last, it continues in another topic.
    """
    spark, cluster, app = context.spark, context.cluster, context.app
    compiled, options = context.compiled, context.options
    flow = compiled.flow
    cluster.ensure_topic(entry.progress, 1, {**KEEP, **APPEND_TIME})
    cluster.ensure_topic(flow.late_topic, 1, KEEP)
    # Opening the writer fenced all earlier drivers. Wait until their transactions are committed or aborted.
    wait_until_decided(cluster, entry.progress)
    ownership.expect_current_owner()
    # A switch first changes the generations and then fences the drivers. So what is read now applies until this writer
    # is fenced.
    entry, stable, is_serving = _topics_of(cluster, flow, entry)
    progress = current(cluster, entry.progress)
    expect_owner(cluster, app, flow)
    if progress is None:
        state = _begin(context, writer, ownership.driver(), entry)
        state.stable, state.is_serving = stable, is_serving
        ownership.claimed = True
        return state
    _expect_same_function(compiled, progress)
    generations = generations_of(cluster, flow)
    is_kept = generations is not None and generations.has_served(entry.number)
    _expect_same_inputs(cluster, app, compiled, progress, is_kept=is_kept)
    ensure_dead_letter_topic(cluster, flow.dead_topic, [source.log for source in progress.generation.inputs])
    _expect_uncompacted(cluster, progress.generation)
    location = options.checkpoint_of(flow.name, progress.generation.checkpoint)
    folder = newest_folder(spark, location) if compiled.stateful else None
    if flow.is_realtime:
        expect_processed(cluster, flow.name, progress, Checkpoint(spark, location))
    elif compiled.stateful and progress.last is not None:
        expect_match(flow.name, progress, progress.last, Checkpoint(spark, folder or f"{location}.*"))
    if progress.generation.output == entry.topic:
        generation, generation_offset = progress.generation, progress.generation_offset
        offset = ownership.claim(writer, progress)
    else:
        generation = _in_other_topic(context, ownership.driver(), progress, entry)
        offset = generation_offset = ownership.claim_with(writer, generation)
    repeats = False
    if compiled.stateful:
        location = (
            take_folder(spark, folder, ownership.expect_current_owner) if folder else first_folder(location)
        )
        repeats = clean_up(flow.name, progress, Checkpoint(spark, location))
    return FlowState(
        generation,
        generation_offset,
        progress.last,
        offset,
        location,
        repeats,
        ownership.id,
        entry.progress,
        stable,
        is_serving,
        is_kept=is_kept,
    )


def _topics_of(cluster: Cluster, flow: Flow, entry: Entry) -> tuple[Entry, str, bool]:
    """Return the current entry of the generation, the stable topic if the generation must write it too, and whether the
    generation serves.
    """
    generations = generations_of(cluster, flow)
    if generations is None:
        return entry, "", True
    if generations.is_paused(entry.number):
        raise SwitchUnderWay(flow.name, generations.switching)
    now = generations.expect(entry.number)
    writes_both = generations.writes_stable(now.number) and now.topic != generations.stable
    return now, generations.stable if writes_both else "", now.number == generations.serving


def _in_other_topic(context: FlowContext, driver: Driver, progress: Progress, entry: Entry) -> Generation:
    """Return the record with which the generation continues in the topic of the entry."""
    cluster, flow = context.cluster, context.flow
    output_id = ensure_derived(cluster, flow.writes, entry.topic, context.options.partitions)
    return msgspec.structs.replace(
        progress.generation,
        output=entry.topic,
        output_id=output_id,
        output_starts={str(p): end for p, end in cluster.ends(entry.topic, committed=False).items()},
        driver=driver,
        continues=progress.generation_offset,
        batch_offset=progress.last_offset,
    )


def _begin(context: FlowContext, writer: TransactionalWriter, driver: Driver, entry: Entry) -> FlowState:
    cluster, app, compiled, options = context.cluster, context.app, context.compiled, context.options
    flow, number, output = compiled.flow, entry.number, entry.topic
    output_id = ensure_derived(cluster, flow.writes, output, options.partitions)
    inputs = []
    for topic in flow.reads:
        log_name = newest_topic(cluster, app, topic)
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
        reason=entry.reason,
        latency=flow.latency,
        updates=compiled.mode == "update",
        late=compiled.late,
        has_watermark=compiled.has_watermark,
        driver=driver,
        digest=compiled.digest,
    )
    _expect_uncompacted(cluster, generation)
    key, value = encode(generation)
    claim = claim_topic(cluster, app, flow, entry) if number == 1 else []
    offset = writer.commit_record(OutgoingRecord(entry.progress, key, value), claim)
    location = options.checkpoint_of(flow.name, generation.checkpoint)
    checkpoint = first_folder(location) if compiled.stateful else location
    return FlowState(
        generation, offset, None, offset, checkpoint, driver_id=driver.id, progress_topic=entry.progress
    )


def _expect_same_function(compiled: Compiled, progress: Progress) -> None:
    name, previous = compiled.flow.name, progress.generation
    hint = rebuild_hint(name)
    if previous.latency != compiled.flow.latency:
        raise FlowChanged(
            f"flow {name} is declared with latency={compiled.flow.latency!r}, but the current generation"
            f" {previous.generation} has latency={previous.latency!r}",
            detail="a batch flow writes each row once, a real-time flow at least once; a topic cannot have both",
            hint=hint,
        )
    if not is_comparable(previous.fingerprint):
        raise FlowChanged(
            f"generation {previous.generation} of flow {name} has a fingerprint of an older release, and this release"
            " computes fingerprints differently",
            detail=f"the fingerprint was {previous.fingerprint} and is now {compiled.fingerprint}; they do not show"
            " whether the function changed",
            hint=f"rebuild the flow once; {hint}",
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
        changes = describe_changes(previous, compiled.flow, compiled.digest, compiled.schema)
        raise FlowChanged(
            f"flow {name} changed since it derived generation {previous.generation}: {changes}",
            detail=f"the fingerprint was {previous.fingerprint} and is now {compiled.fingerprint}",
            hint=hint,
        )


def _expect_same_inputs(
    cluster: Cluster, app: App, compiled: Compiled, progress: Progress, *, is_kept: bool
) -> None:
    flow = compiled.flow
    recorded_inputs = {source.topic: source for source in progress.generation.inputs}
    for topic in flow.reads:
        recorded = recorded_inputs[topic.name]
        upstream = find_upstream(cluster, app, topic)
        if upstream is not None:
            unreadable = why_unreadable(flow, topic, recorded.log, upstream, is_kept=is_kept)
            if unreadable is not None:
                raise unreadable
        current_log = recorded.log
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
            f" headrace flow rebuild {app_argument()} {generation.flow}",
        )
