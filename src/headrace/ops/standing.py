"""Where a view of a flow's topic stands, by the flow's own progress records, and what is wrong about it.

A position names a batch three times: by its number, by the output offsets behind its rows, and by the place of its
progress record. All three must agree, with a batch that was committed. If they do not, the rows are compared with the
batch that the offsets tell of, since those are what a follower goes by.

A view of what is written in real time is ahead of the batch that it names, and says how far by its sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress, current
from headrace.client.reading import read
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation, Record, decode
from headrace.ops.errors import NotDerived
from headrace.ops.report import Finding
from headrace.ops.served import Served

__all__ = ["Standing", "progress_of", "stand"]

NO_BATCH = -1


@dataclass(slots=True)
class Standing:
    generation: Generation | None
    """Of the flow; None if rows cannot be compared, since nobody knows with what."""
    through: Batch | None
    """The last batch that is in the view; None before the first."""
    behind: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def progress_of(cluster: Cluster, flow: Flow) -> Progress:
    found = current(cluster, flow.progress_topic)
    if found is None:
        raise NotDerived(
            f"flow {flow.name} has not begun: {flow.progress_topic} has no records",
            hint="headrace run, or headrace flow run, begins it",
        )
    return found


def stand(cluster: Cluster, flow: Flow, served: Served) -> Standing:
    newest = progress_of(cluster, flow)
    topic = cluster.expect_topic(flow.progress_topic)
    made = Standing(None, None)

    def wrong(message: str) -> None:
        made.findings.append(Finding("position", message, f"headrace view rebuild builds {served.view} anew"))

    if served.progress_id != topic.id:
        wrong(f"it goes by another {flow.progress_topic} than the one in the log, which was made again")
        return made
    generations, number, by_offsets, at_record = _look(cluster, flow, served)
    made.generation = generations.get(served.generation)
    if made.generation is None:
        wrong(
            f"it is at generation {served.generation}, and the flow's newest is {newest.generation.generation}"
        )
        return made
    if served.generation < newest.generation.generation:
        made.notes.append(
            f"it serves generation {served.generation}; generation {newest.generation.generation} is being built"
        )
    if (served.topic, served.topic_id) != (made.generation.output, made.generation.output_id):
        wrong(
            f"it follows {served.topic}, and generation {served.generation} writes {made.generation.output}"
        )
        made.generation = None
        return made
    if served.batch == NO_BATCH:
        return made
    if made.generation.latency == "realtime":
        made.through = number
        rows = _ends(made.generation, number) if number is not None else {}
        if number is None or any(served.offsets.get(one, 0) < end for one, end in rows.items()):
            told = f"which ends at {_told(rows)}" if number is not None else "which is not in the log"
            wrong(f"it says batch {served.batch}, {told}, and is at offsets {_told(served.offsets)}")
        made.behind = _behind(newest, served)
        return made
    found = number or by_offsets or at_record
    if found is None:
        last = newest.last.batch if newest.last else "none"
        wrong(
            f"it is at batch {served.batch}, offsets {_told(served.offsets)}, and the log has no such batch;"
            f" its last one is {last}"
        )
        made.generation = None
        return made
    made.through = by_offsets or number or at_record
    if number is not by_offsets or number is not at_record:
        ends = _told(_ends(made.generation, number)) if number is not None else "not in the log"
        record = f"batch {at_record.batch}" if at_record is not None else "none of its batches"
        wrong(
            f"it says batch {served.batch} ({ends}), offsets {_told(served.offsets)}"
            f" ({f'batch {by_offsets.batch}' if by_offsets else 'the end of no batch'}),"
            f" and progress offset {served.progress_offset} ({record})"
        )
    made.behind = _behind(newest, served)
    return made


def _behind(newest: Progress, served: Served) -> int:
    if newest.last is None or newest.generation.generation != served.generation:
        return 0
    return max(0, newest.last.batch - served.batch)


def _look(
    cluster: Cluster, flow: Flow, served: Served
) -> tuple[dict[int, Generation], Batch | None, Batch | None, Batch | None]:
    """All generations, and the batch that the position names by number, by offsets and by the place of its record."""
    generations: dict[int, Generation] = {}
    number = by_offsets = at_record = None
    for offset, record in _records(cluster, flow.progress_topic):
        if isinstance(record, Generation):
            generations[record.generation] = record
            continue
        if not isinstance(record, Batch) or record.generation != served.generation:
            continue
        if record.batch == served.batch:
            number = record
        if offset + 1 == served.progress_offset:
            at_record = record
        # A batch without rows ends where the one before it does: the number decides between them.
        if _is_at(generations[record.generation], record, served.offsets) and (
            by_offsets is None or record.batch <= served.batch
        ):
            by_offsets = record
    return generations, number, by_offsets, at_record


def _records(cluster: Cluster, topic: str) -> Iterator[tuple[int, Record]]:
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    for message in read(cluster, topic, ranges):
        offset = message.offset() or 0
        yield offset, decode(message.value() or b"", where=f"{topic} at offset {offset}")


def _ends(generation: Generation, batch: Batch) -> dict[int, int]:
    return {int(one): end for one, (_, end) in batch.outputs.get(generation.output, {}).items()}


def _is_at(generation: Generation, batch: Batch, offsets: dict[int, int]) -> bool:
    """Of a partition without rows so far, a follower knows only where it began to read."""
    begin = generation.output_starts
    return all(
        offsets.get(one, 0) == end or (end == begin.get(str(one), 0) and offsets.get(one, 0) <= end)
        for one, end in _ends(generation, batch).items()
    )


def _told(offsets: dict[int, int]) -> str:
    return ", ".join(f"{one}:{at}" for one, at in sorted(offsets.items())) or "none"
