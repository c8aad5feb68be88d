"""The phases of a small batch, by Spark's own metrics, against the same query by hand.

Both use our JVM and its options. The hand-written query writes its checkpoint as Spark does by default. Spark's phase
``addBatch`` is the work itself: reading, deriving, state, and writing. For a flow, ``addBatch`` also contains the
transaction with the progress record.
"""

from __future__ import annotations

from bench.flow.context import QUERIES, FlowContext
from bench.flow.slow_orders import trickle
from bench.flow.trigger_profile import TOTAL, Trigger, means, read_triggers

__all__ = ["measure", "phases"]

_PEER = "the same query by hand, Spark's own checkpoint files and Kafka sink"
_SPARK_DEFAULTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "true",
}
_MIN_MS = 0.1
"""Used instead of 0: Spark counts whole milliseconds, and some phases take less than one."""


def measure(context: FlowContext) -> None:
    plan = context.plan
    for query, title in QUERIES.items():
        triggers_of: dict[str, list[Trigger]] = {"us": [], "them": []}
        for number, who in context.turns():
            name = f"{query}-small-{who}-{number}"
            topic = f"{name}-orders"
            context.cluster.ensure_topic(topic, 1)
            is_ours = who == "us"
            task = context.task(
                "flow" if is_ours else "by-hand",
                query,
                name,
                topic,
                partitions=1,
                profiled=True,
                spark={} if is_ours else {"conf": _SPARK_DEFAULTS},
            )
            with context.host.run(task) as running:
                trickle(
                    context.cluster,
                    topic,
                    task.settings.checkpoints,
                    running.check,
                    rate=plan.rate,
                    warm_s=plan.warm_s,
                    seconds=plan.seconds,
                )
            triggers = read_triggers(task.triggers_file)
            # Skip the first half, while the JVM was still warming up.
            triggers_of[who] += triggers[len(triggers) // 2 :]
        for phase, ours, theirs in phases(triggers_of["us"], triggers_of["them"]):
            goal = 1.0 if phase == TOTAL else None
            row = f"{phase} of a small batch at {plan.rate}/s, {title}"
            context.figures.add_comparison(row, _PEER, ours, theirs, "ms", goal)


def phases(us: list[Trigger], them: list[Trigger]) -> list[tuple[str, float, float]]:
    """Return the name of each phase, with our and their milliseconds: the total first, then by our duration."""
    ours, theirs = means(us), means(them)
    names = sorted({*ours, *theirs}, key=lambda name: (name != TOTAL, -ours.get(name, 0.0), name))
    return [(name, max(_MIN_MS, ours.get(name, 0.0)), max(_MIN_MS, theirs.get(name, 0.0))) for name in names]
