"""``headrace topic list`` and ``describe``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import TopicUnknown
from headrace.cli.options import Topics
from headrace.cli.session import Session
from headrace.cli.verb import verb

if TYPE_CHECKING:
    from headrace.ops.outlook import Outlook

__all__ = ["describe", "list_topics"]


_TOPICS_PER_REQUEST = 500


@verb(
    "list",
    examples="""
    headrace topic list
    headrace topic list 'orders.*'
    headrace topic list --json | jq -r .topic
    """,
)
def list_topics(
    session: Session,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN", help="List only topics whose whole name matches this regular expression."
        ),
    ] = None,
    internal: Annotated[
        bool, typer.Option("--internal", "-i", help="Include the cluster's internal topics.")
    ] = False,
) -> None:
    """List topics with their partitions and replicas.

    An extra column marks the topics that the broker stores only in memory, if any exist.
    """
    import re

    from headrace.cli.errors import UsageError
    from headrace.cli.kafka import cluster_metadata

    try:
        matcher = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
    rows = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(partition.replicas) for partition in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(cluster_metadata(session).topics.items())
        if (internal or not name.startswith("__")) and (matcher is None or matcher.fullmatch(name))
    ]
    volatile = _volatile(session, [str(row["topic"]) for row in rows])
    if volatile:
        rows = [row | {"volatile": "in memory only" if row["topic"] in volatile else ""} for row in rows]
    session.out.table(rows, empty="no topics" if matcher is None else "no topic matches")


def _volatile(session: Session, names: list[str]) -> set[str]:
    """Return the topics that the broker stores only in memory."""
    from headrace.cli.kafka import ConfigResource, ResourceType, result_of
    from headrace.truth import is_volatile

    volatile: set[str] = set()
    for first in range(0, len(names), _TOPICS_PER_REQUEST):
        resources = [
            ConfigResource(ResourceType.TOPIC, name) for name in names[first : first + _TOPICS_PER_REQUEST]
        ]
        futures = session.cluster().admin().describe_configs(resources, request_timeout=session.timeout_s)
        for resource, future in futures.items():
            try:
                entries = result_of(future, session, "reading topic configs", topic=resource.name)
            except TopicUnknown:
                continue  # The topic was deleted after it was listed.
            if is_volatile({name: entry.value for name, entry in entries.items()}):
                volatile.add(resource.name)
    return volatile


_TOMBSTONES_REMOVED_CONFIG = "headrace.tombstones.removed.below"


@verb(
    "describe",
    examples="""
    headrace topic describe orders
    headrace topic describe orders -p           only its partitions, with their offsets
    headrace topic describe orders -c           only its configs, with defaults
    headrace topic describe orders --json
    """,
)
def describe(
    session: Session,
    names: Topics,
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="Show only the partitions.")] = False,
    configs: Annotated[
        bool, typer.Option("--configs", "-c", help="Show only the configs, with defaults.")
    ] = False,
) -> None:
    """Describe topics: partitions, configs, and how long records are retained.

    It shows the leader and the offsets of each partition. Configs with default values are left out unless -c is set.
    The rate is the average of the last minutes. Retention deletes a record when it is older than retention.ms, or when
    the newer records fill retention.bytes; the command estimates the second time from the rate.

    For a compacted topic of the embedded broker, tombstones_removed_below is an offset. A reader that continues from a
    lower offset can miss the deletion of a key. Such a reader must discard its state and read from the first offset.
    """
    from headrace.cli.kafka import bounds_of, describe_topics

    show_all = not (partitions or configs)
    descriptions = describe_topics(session, names)
    for index, topic in enumerate(descriptions):
        described = sorted(topic.partitions, key=lambda partition: partition.id)
        bounds = bounds_of(session, [(topic.name, partition.id) for partition in described])
        rows = [_partition_row(partition, bounds[topic.name, partition.id]) for partition in described]
        settings = _configs(session, topic.name)
        removed_below = _removed_below(settings)
        if removed_below is not None:
            for row in rows:
                row["tombstones_removed_below"] = removed_below.get(row["partition"])
        outlook = _outlook(session, bounds, settings) if show_all else None
        if not configs:
            settings = [setting for setting in settings if show_all and setting["source"] != "default"]
        if session.out.as_json:
            summary: dict[str, object] = {"topic": topic.name}
            if show_all:
                summary |= {"id": str(topic.topic_id), "internal": topic.is_internal}
            if outlook is not None:
                summary |= outlook.row()
            if partitions or show_all:
                summary["partitions"] = rows
            if configs or show_all:
                summary["configs"] = settings
            session.out.json_line(summary)
            continue
        if index:
            session.out.text("")
        if show_all or len(descriptions) > 1:
            session.out.text(f"topic       {topic.name}")
        if show_all:
            replicas = max((len(partition.replicas) for partition in described), default=0)
            session.out.text(f"id          {topic.topic_id}")
            session.out.text(f"partitions  {len(rows)}")
            session.out.text(f"replicas    {replicas}")
            session.out.text(f"records     {sum(row['end'] - row['start'] for row in rows)}")
            for line in outlook.lines() if outlook is not None else ():
                session.out.text(line)
            session.out.text("")
        if partitions or show_all:
            session.out.table(rows)
        if settings:
            if partitions or show_all:
                session.out.text("")
            session.out.table(settings)
    session.out.flush()


def _outlook(session: Session, bounds: Any, settings: list[dict[str, object]]) -> Outlook:
    from headrace.cli.kafka import offsets_of
    from headrace.cli.offset_range import Kind, OffsetSpec
    from headrace.clock import SystemClock
    from headrace.ops.outlook import WINDOW_MS, outlook, sizes_of

    since = OffsetSpec(Kind.TIME, SystemClock().now_ms() - WINDOW_MS)
    before = offsets_of(session, since, bounds)
    return outlook(bounds, before, sizes_of(session.cluster(), bounds), settings)


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
    """Return the offset by partition, without offline partitions; None if the topic is not compacted."""
    for setting in settings:
        if setting["config"] == _TOMBSTONES_REMOVED_CONFIG:
            pairs = [pair.partition(":") for pair in str(setting["value"] or "").split(",") if pair]
            return {int(number): int(offset) for number, _, offset in pairs}
    return None


def _configs(session: Session, topic: str) -> list[dict[str, object]]:
    from headrace.cli.kafka import ConfigResource, ConfigSource, ResourceType, result_of

    sources = {
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
        ConfigSource.DEFAULT_CONFIG.value: "default",
    }
    resource = ConfigResource(ResourceType.TOPIC, topic)
    futures = session.cluster().admin().describe_configs([resource], request_timeout=session.timeout_s)
    operation = f"reading the configs of {topic!r}"
    entries = result_of(next(iter(futures.values())), session, operation, topic=topic)
    return [
        {
            "config": entry.name,
            "value": "(hidden)" if entry.is_sensitive else entry.value,
            "source": sources.get(int(entry.source), "broker"),
        }
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]
