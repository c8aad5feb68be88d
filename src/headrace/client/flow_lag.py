"""How far a flow is behind its inputs: records that no committed batch has read."""

from __future__ import annotations

from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress
from headrace.model.progress import Batch, Generation, Input

__all__ = ["behind", "flow_lag", "reached"]


def flow_lag(cluster: Cluster, progress: Progress) -> int:
    streams = [one.log for one in progress.generation.inputs if one.kind == "events"]
    return behind(progress.generation, progress.last, {log: cluster.ends(log) for log in streams})


def behind(generation: Generation, last: Batch | None, ends: dict[str, dict[int, int]]) -> int:
    """``ends`` are those of the input topics, by their name in the log."""
    found = 0
    for one in generation.inputs:
        at = reached(one, last)
        for number, end in ends.get(one.log, {}).items():
            found += max(0, end - at.get(number, 0))
    return found


def reached(one: Input, last: Batch | None) -> dict[int, int]:
    """Which offset of the input comes next, per partition; one that is not in it was added since, and is new."""
    read = last.inputs.get(one.log, {}) if last else {}
    return {int(number): to for number, (_, to) in read.items()} or {
        int(number): start for number, start in one.starts.items()
    }
