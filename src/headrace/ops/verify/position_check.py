"""Checks the position of a view of a flow's topic against the flow's progress records.

A position names a batch in three ways: by its number, by the output offsets after its rows, and by the offset of its
progress record. All three must name the same committed batch. If they do not, the rows are compared with the batch that
the offsets name, because followers use the offsets.

A view of a real-time flow is ahead of the batch that it names. The ``sources`` of its position show how far: they are
the offsets of the flow's input up to which the view has the derived rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.app_argument import app_argument
from headrace.client import generations
from headrace.client.cluster import Cluster
from headrace.client.generations import progress_topic_of
from headrace.client.progress import Progress
from headrace.client.records import read
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, Generation, Record, decode
from headrace.ops.verify.errors import NotDerived
from headrace.ops.verify.report import Finding
from headrace.ops.verify.snapshot import StoreSnapshot

__all__ = ["PositionCheck", "check_position", "progress_of"]

NO_BATCH = -1


@dataclass(slots=True)
class PositionCheck:
    generation: Generation | None
    """The generation to compare the rows with; None if unknown."""
    last_batch: Batch | None
    """The last batch in the view; None if the view has no batch yet."""
    behind: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _NamedBatches:
    """The batch that the position names in each of the three ways."""

    generations: dict[int, Generation] = field(default_factory=dict)
    """By number, the record of the generation for the topic that the view follows, else its newest record."""
    by_number: Batch | None = None
    by_offsets: Batch | None = None
    by_record: Batch | None = None

    @property
    def agree(self) -> bool:
        return self.by_number is self.by_offsets and self.by_number is self.by_record


def progress_of(cluster: Cluster, flow: Flow, number: int = 0) -> Progress:
    """Return the progress of a generation (0: the serving one)."""
    progress = generations.progress_of(cluster, flow, number)
    if progress is None:
        raise NotDerived(
            f"flow {flow.name} has not started: {flow.progress_topic} has no records",
            hint="start the flow with headrace run or headrace flow run",
        )
    return progress


def check_position(cluster: Cluster, flow: Flow, snapshot: StoreSnapshot) -> PositionCheck:
    newest = progress_of(cluster, flow)
    serving = newest.generation.generation
    if snapshot.generation and snapshot.generation != serving:
        newest = generations.progress_of(cluster, flow, snapshot.generation) or newest
    topic = cluster.expect_topic(progress_topic_of(cluster, flow, snapshot.generation or serving))
    check = PositionCheck(None, None)

    def add_finding(message: str) -> None:
        check.findings.append(
            Finding(
                "position",
                message,
                f"rebuild the view: headrace view rebuild {app_argument()} {snapshot.view}",
            )
        )

    if snapshot.progress_id != topic.id:
        add_finding(f"topic {topic.name} was deleted and recreated after the view was built")
        return check
    named = _find_batches(cluster, topic.name, snapshot)
    check.generation = named.generations.get(snapshot.generation)
    if check.generation is None:
        add_finding(
            f"the view is at generation {snapshot.generation}, but the flow's newest is {newest.generation.generation}"
        )
        return check
    if snapshot.generation != serving:
        check.notes.append(
            f"the view still has generation {snapshot.generation}; the flow serves generation {serving}"
        )
    if (snapshot.topic, snapshot.topic_id) != (check.generation.output, check.generation.output_id):
        add_finding(
            f"the view follows {snapshot.topic}, but generation {snapshot.generation} writes {check.generation.output}"
        )
        check.generation = None
        return check
    if snapshot.batch == NO_BATCH:
        return check
    if check.generation.latency == "realtime":
        check.last_batch = named.by_number
        ends = _ends(check.generation, named.by_number) if named.by_number is not None else {}
        if named.by_number is None or any(
            snapshot.offsets.get(number, 0) < end for number, end in ends.items()
        ):
            batch = (
                f"which ends at {_offsets_text(ends)}"
                if named.by_number is not None
                else "which is not in the log"
            )
            add_finding(
                f"the view names batch {snapshot.batch}, {batch}, but is at offsets {_offsets_text(snapshot.offsets)}"
            )
        check.behind = _behind(newest, snapshot)
        return check
    check.last_batch = named.by_offsets or named.by_number or named.by_record
    if check.last_batch is None:
        last = newest.last.batch if newest.last else "none"
        add_finding(
            f"the view is at batch {snapshot.batch}, offsets {_offsets_text(snapshot.offsets)}, but the log does not"
            f" have this batch; its last batch is {last}"
        )
        check.generation = None
        return check
    if not named.agree:
        add_finding(_disagreement(check.generation, named, snapshot))
    check.behind = _behind(newest, snapshot)
    return check


def _disagreement(generation: Generation, named: _NamedBatches, snapshot: StoreSnapshot) -> str:
    number, offsets, record = named.by_number, named.by_offsets, named.by_record
    by_number = (
        f"ends at {_offsets_text(_ends(generation, number))}" if number is not None else "is not in the log"
    )
    by_offsets = (
        f"are the end of batch {offsets.batch}" if offsets is not None else "are not the end of a batch"
    )
    by_record = (
        f"is of batch {record.batch}" if record is not None else "is not of a batch of this generation"
    )
    return (
        f"the view's position is inconsistent: batch {snapshot.batch} {by_number}, offsets"
        f" {_offsets_text(snapshot.offsets)} {by_offsets}, and progress offset {snapshot.progress_offset} {by_record}"
    )


def _behind(newest: Progress, snapshot: StoreSnapshot) -> int:
    if newest.last is None or newest.generation.generation != snapshot.generation:
        return 0
    return max(0, newest.last.batch - snapshot.batch)


def _find_batches(cluster: Cluster, topic: str, snapshot: StoreSnapshot) -> _NamedBatches:
    named, written, last = _NamedBatches(), "", None
    for offset, record in _records(cluster, topic):
        if isinstance(record, Generation):
            known = named.generations.get(record.generation)
            if known is None or known.output_id != snapshot.topic_id:
                named.generations[record.generation] = record
            if record.generation == snapshot.generation:
                written = record.output_id
                if (
                    last is not None
                    and written == snapshot.topic_id
                    and _is_at_start(record, snapshot.offsets)
                ):
                    # The generation continued in another topic after this batch, and so did the view.
                    named.by_offsets = last
            continue
        if not isinstance(record, Batch) or record.generation != snapshot.generation:
            continue
        last = record
        if record.batch == snapshot.batch:
            named.by_number = record
        if offset + 1 == snapshot.progress_offset:
            named.by_record = record
        # A batch without rows ends where the previous batch ends. Then the batch number decides.
        is_at = _is_at(named.generations[record.generation], record, snapshot.offsets)
        is_in_topic = written == snapshot.topic_id
        if is_at and is_in_topic and (named.by_offsets is None or record.batch <= snapshot.batch):
            named.by_offsets = record
    return named


def _records(cluster: Cluster, topic: str) -> Iterator[tuple[int, Record]]:
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    for message in read(cluster, topic, ranges):
        offset = message.offset() or 0
        yield offset, decode(message.value() or b"", where=f"{topic} at offset {offset}")


def _ends(generation: Generation, batch: Batch) -> dict[int, int]:
    return {int(number): end for number, (_, end) in batch.outputs.get(generation.output, {}).items()}


def _is_at(generation: Generation, batch: Batch, offsets: dict[int, int]) -> bool:
    """Whether the offsets are at the end of the batch. In a partition without rows so far, a follower knows only the
    offset where it started to read.
    """
    starts = generation.output_starts
    return all(
        offsets.get(number, 0) == end or (end == starts.get(str(number), 0) and offsets.get(number, 0) <= end)
        for number, end in _ends(generation, batch).items()
    )


def _is_at_start(generation: Generation, offsets: dict[int, int]) -> bool:
    return offsets == {int(number): start for number, start in generation.output_starts.items()}


def _offsets_text(offsets: dict[int, int]) -> str:
    return ", ".join(f"{number}:{offset}" for number, offset in sorted(offsets.items())) or "none"
