"""Where Spark goes on with a flow that keeps state: its checkpoint, held against the last progress in the log.

Of a batch N the checkpoint has, in the order in which Spark writes them:

    offsets/N           its plan: where its inputs end
    state/…/(N+1).*     the state behind it
    commits/N           that it is done; written after the log has committed the batch

What belongs to a batch without a progress record is of an attempt that came to nothing: its plan may be cut, and its
state is written again. A plan or a note that cannot be read is what a power loss leaves of a file that was not synced
yet (``headrace.flow.checkpoint_sync`` says which those can be): Spark plans, or runs, that batch again. Whatever else
does not fit the progress is never guessed around: the flow stops.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.progress_log import Progress
from headrace.flow.checkpoint import Checkpoint
from headrace.flow.errors import CheckpointLost, CheckpointStale, rebuild_hint
from headrace.model.progress import Batch, Generation, Ranges

__all__ = ["cut_plan", "expect_fit", "last_progress", "resume"]


def last_progress(generation: Generation, last: Batch | None) -> str:
    told = f"batch {last.batch}, inputs {last.inputs}" if last else "no batch"
    return f"the last progress in the log is generation {generation.generation}, {told}"


@dataclass(frozen=True, slots=True)
class _Fit:
    done: int
    """The last batch that Spark has done, or -1."""
    torn: bool
    """Whether it noted the one after that, in a file that cannot be read."""
    repeats: bool
    """Whether the one after that is the last in the log."""


def expect_fit(flow: str, found: Progress, last: Batch, checkpoint: Checkpoint) -> _Fit:
    """Raises ``CheckpointLost`` or ``CheckpointStale``; changes nothing."""
    number = last.batch
    progress = last_progress(found.generation, last)
    if not checkpoint.exists():
        raise CheckpointLost(
            f"the checkpoint of flow {flow} is not at {checkpoint.location}",
            detail=progress,
            hint=f"put it back there, or say where it is (--data); else: {rebuild_hint(flow)}",
        )
    noted, planned = checkpoint.last_done(), checkpoint.last_planned()
    done = -1 if noted is None else noted
    torn = done >= 0 and not checkpoint.is_done(done)
    if torn:
        done -= 1
    repeats = done == number - 1
    ends = _ends(last)
    if not (repeats or done >= number) or checkpoint.planned_offsets(number if repeats else done) != ends:
        raise CheckpointStale(
            f"the checkpoint of flow {flow} at {checkpoint.location} does not belong to what is in the log",
            detail=f"it has planned batch {planned} and done batch {noted}; {progress}",
            hint=f"restore the checkpoint of that moment; else: {rebuild_hint(flow)}",
        )
    return _Fit(done, torn, repeats)


def resume(flow: str, found: Progress, checkpoint: Checkpoint) -> bool:
    """Whether Spark will run the last batch again. Removes from the checkpoint what an attempt has left that came to
    nothing.
    """
    if found.last is None:
        checkpoint.remove()
        return False
    fit, ends = expect_fit(flow, found, found.last, checkpoint), _ends(found.last)
    done = fit.done
    if fit.torn:
        checkpoint.forget_done(done + 1)
    for batch in checkpoint.plans():
        # A plan that is cut short may end between two inputs.
        planned_ends = checkpoint.planned_offsets(batch) if batch == done + 1 else None
        if batch > done and (planned_ends is None or planned_ends.keys() != ends.keys()):
            checkpoint.forget_plan(batch)
    # The one after the next, where it is torn that the one before it is done.
    for batch in (done + 1, done + 2):
        checkpoint.forget_state(batch)
    return fit.repeats


def _ends(last: Batch) -> dict[str, dict[str, int]]:
    return {
        topic: {number: to for number, (_, to) in ranges.items()} for topic, ranges in last.inputs.items()
    }


def cut_plan(checkpoint: Checkpoint, batch: int, ranges: Ranges, rows_max: int) -> None:
    """Let Spark plan a batch again, which has no progress record, if its plan has more rows of an input than a batch
    may have now.
    """
    if any(sum(high - low for low, high in one.values()) > rows_max for one in ranges.values()):
        checkpoint.forget_plan(batch)
