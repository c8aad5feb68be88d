"""How far a flow is behind its inputs: records that no committed batch has read."""

from __future__ import annotations

from headrace.client.cluster import Cluster
from headrace.client.progress_log import Progress
from headrace.model.progress import Batch, Generation

__all__ = ["behind", "flow_lag"]


def flow_lag(cluster: Cluster, progress: Progress) -> int:
    streams = [one.log for one in progress.generation.inputs if one.kind == "events"]
    return behind(progress.generation, progress.last, {log: cluster.ends(log) for log in streams})


def behind(generation: Generation, last: Batch | None, ends: dict[str, dict[int, int]]) -> int:
    """``ends`` are those of the input topics, by their name in the log."""
    found = 0
    for one in generation.inputs:
        read = last.inputs.get(one.log, {}) if last else {}
        reached = {number: to for number, (_, to) in read.items()} or one.starts
        for number, end in ends.get(one.log, {}).items():
            found += max(0, end - reached.get(str(number), 0))
    return found
