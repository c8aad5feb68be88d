"""``headrace topic describe``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.parameters import Topics
from headrace.cli.session import Session
from headrace.cli.verb import verb

if TYPE_CHECKING:
    from headrace.ops.outlook import Outlook

__all__ = ["describe"]

_REMOVED_BELOW = "headrace.tombstones.removed.below"


@verb(
    "describe",
    examples="""
    headrace topic describe orders
    headrace topic describe orders -p           only its partitions, with their offsets
    headrace topic describe orders -c           only its configs, all of them
    headrace topic describe orders --json
    """,
)
def describe(
    session: Session,
    names: Topics,
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="Only the partitions.")] = False,
    configs: Annotated[bool, typer.Option("--configs", "-c", help="Only the configs, all of them.")] = False,
) -> None:
    """Describe topics, their partitions and configs, and how long their records stay.

    Partitions come with their leaders and offsets, configs only where they are not the default. The rate is that of the
    last minutes; a record is lost by retention.ms, or at this rate by retention.bytes, whichever comes first.

    Of a compacted topic, tombstones_removed_below is told where the broker does: whoever comes back to an offset below
    it may have missed the deletion of a key, and must start again from the first offset with nothing kept.
    """
    from headrace.cli.client import open_admin
    from headrace.cli.lookup import bounds_of, describe_topics

    everything = not (partitions or configs)
    admin = open_admin(session)
    descriptions = describe_topics(session, admin, names)
    for index, topic in enumerate(descriptions):
        numbers = sorted(topic.partitions, key=lambda one: one.id)
        bounds = bounds_of(session, admin, [(topic.name, one.id) for one in numbers])
        rows = [_partition_row(one, bounds[topic.name, one.id]) for one in numbers]
        settings = _configs(session, admin, topic.name)
        removed_below = _removed_below(settings)
        if removed_below is not None:
            for row in rows:
                row["tombstones_removed_below"] = removed_below.get(row["partition"])
        future = _outlook(session, admin, bounds, settings) if everything else None
        if not configs:
            settings = [setting for setting in settings if everything and setting["source"] != "default"]
        if session.out.as_json:
            summary: dict[str, object] = {"topic": topic.name}
            if everything:
                summary |= {"id": str(topic.topic_id), "internal": topic.is_internal}
            if future is not None:
                summary |= future.row()
            if partitions or everything:
                summary["partitions"] = rows
            if configs or everything:
                summary["configs"] = settings
            session.out.json_line(summary)
            continue
        if index:
            session.out.text("")
        if everything or len(descriptions) > 1:
            session.out.text(f"topic       {topic.name}")
        if everything:
            session.out.text(f"id          {topic.topic_id}")
            session.out.text(f"partitions  {len(rows)}")
            session.out.text(f"replicas    {max((len(one.replicas) for one in numbers), default=0)}")
            session.out.text(f"records     {sum(one['end'] - one['start'] for one in rows)}")
            for line in future.lines() if future is not None else ():
                session.out.text(line)
            session.out.text("")
        if partitions or everything:
            session.out.table(rows)
        if settings:
            if partitions or everything:
                session.out.text("")
            session.out.table(settings)
    session.out.flush()


def _outlook(session: Session, admin: Any, bounds: Any, settings: list[dict[str, object]]) -> Outlook:
    from headrace.cli.lookup import Place, offsets_of
    from headrace.cli.offsets import Kind
    from headrace.cli.settings import cluster_of
    from headrace.clock import SystemClock
    from headrace.ops.log_dirs import sizes_of
    from headrace.ops.outlook import WINDOW_MS, outlook

    since = Place(Kind.TIME, SystemClock().now_ms() - WINDOW_MS)
    before = offsets_of(session, admin, since, bounds)
    return outlook(bounds, before, sizes_of(cluster_of(session), bounds), settings)


def _partition_row(partition: Any, bounds: Any) -> dict[str, Any]:
    return {
        "partition": partition.id,
        "leader": None if partition.leader is None else partition.leader.id,
        "replicas": [node.id for node in partition.replicas],
        "in_sync": [node.id for node in partition.isr],
        "start": bounds.start,
        "end": bounds.end,
        "records": bounds.end - bounds.start,
    }


def _removed_below(settings: list[dict[str, object]]) -> dict[int, int] | None:
    """By partition; those that are offline are not told. ``None`` for a topic that is not compacted."""
    for setting in settings:
        if setting["config"] == _REMOVED_BELOW:
            pairs = [pair.partition(":") for pair in str(setting["value"] or "").split(",") if pair]
            return {int(number): int(offset) for number, _, offset in pairs}
    return None


def _configs(session: Session, admin: Any, topic: str) -> list[dict[str, object]]:
    from headrace.cli.client import result_of
    from headrace.cli.kafka_admin import ConfigResource, ConfigSource, ResourceType

    sources = {
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
        ConfigSource.DEFAULT_CONFIG.value: "default",
    }
    resource = ConfigResource(ResourceType.TOPIC, topic)
    futures = admin.describe_configs([resource], request_timeout=session.timeout_s)
    entries = result_of(
        next(iter(futures.values())),
        session,
        f"asking for the configs of {topic!r}",
        topic=topic,
    )
    return [
        {
            "config": entry.name,
            "value": "(hidden)" if entry.is_sensitive else entry.value,
            "source": sources.get(int(entry.source), "broker"),
        }
        for entry in sorted(entries.values(), key=lambda one: one.name)
    ]
