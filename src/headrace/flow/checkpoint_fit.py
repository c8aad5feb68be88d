"""Compares the checkpoint of a flow with its progress records.

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

from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.progress import Progress
from headrace.client.records import next_records
from headrace.flow.errors import CheckpointLost, CheckpointStale, rebuild_hint
from headrace.flow.spark.checkpoint import Checkpoint
from headrace.model.progress import Batch, Generation, Ranges

__all__ = ["clean_up", "cut_plan", "expect_match", "expect_processed", "last_progress"]


def expect_processed(cluster: Cluster, flow: str, progress: Progress, checkpoint: Checkpoint) -> None:
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


def expect_match(flow: str, progress: Progress, last: Batch, checkpoint: Checkpoint) -> _CheckpointFit:
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


def clean_up(flow: str, progress: Progress, checkpoint: Checkpoint) -> bool:
    """Remove files of failed attempts from the checkpoint. Returns whether Spark will repeat the last batch."""
    if progress.last is None:
        checkpoint.remove()
        return False
    checkpoint_fit, ends = expect_match(flow, progress, progress.last, checkpoint), _ends(progress.last)
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
