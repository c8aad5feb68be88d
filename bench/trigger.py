"""Where the time of a small batch goes: Spark's own account of it, part by part, beside the same query by hand.

Both have our JVM and its options; the one by hand keeps its checkpoint as Spark does by default. What Spark calls
addBatch is the work itself: reading, deriving, state, and writing; of a flow, its transaction with its progress record
as well.
"""

from __future__ import annotations

from bench.profile import TOTAL, Trigger, means, read_triggers
from bench.stand import QUERIES, Stand
from bench.trickle import trickle

__all__ = ["measure", "rows_of"]

_PEER = "the same query by hand, Spark's own checkpoint files and Kafka sink"
_AS_SPARK_HAS_IT = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
}
_LEAST_MS = 0.1
"""Spark counts in whole milliseconds, and some parts have none."""


def measure(stand: Stand) -> None:
    plan = stand.plan
    for query, title in QUERIES.items():
        found: dict[str, list[Trigger]] = {"us": [], "them": []}
        for number, who in stand.turns():
            name = f"{query}-small-{who}-{number}"
            topic = f"{name}-orders"
            stand.cluster.ensure_topic(topic, 1)
            is_ours = who == "us"
            task = stand.task(
                "flow" if is_ours else "by-hand",
                query,
                name,
                topic,
                partitions=1,
                profiled=True,
                spark={} if is_ours else {"conf": _AS_SPARK_HAS_IT},
            )
            with stand.host.run(task) as running:
                trickle(
                    stand.cluster,
                    topic,
                    task.settings.checkpoints,
                    running.check,
                    rate=plan.rate,
                    warm_s=plan.warm_s,
                    seconds=plan.seconds,
                )
            told = read_triggers(task.triggers_file)
            # The first half of them came while the JVM was still warming up.
            found[who] += told[len(told) // 2 :]
        for part, ours, theirs in rows_of(found["us"], found["them"]):
            goal = 1.0 if part == TOTAL else None
            row = f"{part} of a small batch at {plan.rate}/s, {title}"
            stand.measured.both(row, _PEER, ours, theirs, "ms", goal)


def rows_of(us: list[Trigger], them: list[Trigger]) -> list[tuple[str, float, float]]:
    """Parts that either has, in milliseconds: the whole first, then by how long they take."""
    ours, theirs = means(us), means(them)
    parts = sorted({*ours, *theirs}, key=lambda part: (part != TOTAL, -ours.get(part, 0.0), part))
    return [
        (part, max(_LEAST_MS, ours.get(part, 0.0)), max(_LEAST_MS, theirs.get(part, 0.0))) for part in parts
    ]
