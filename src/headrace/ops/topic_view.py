"""A view of a topic that no flow writes, held against the fold of the topic."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.cluster import Cluster
from headrace.model.view import View
from headrace.ops.errors import CannotVerify
from headrace.ops.plain_rows import PlainRows
from headrace.ops.refused import refused_places
from headrace.ops.report import Finding, Report
from headrace.ops.sameness import Sameness
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served
from headrace.ops.topic_fold import TopicFold

__all__ = ["check_topic_view", "shape_finding", "unnoted_finding"]


def check_topic_view(
    cluster: Cluster,
    view: View,
    served: Served,
    scratch: Scratch,
    report: Report,
    sample: int,
    count: Callable[[int, int], None],
) -> None:
    schema = view.topic.schema
    if schema is None:
        raise CannotVerify(f"topic {view.topic.name} has no schema, and no flow writes it")
    report.found_rows = scratch.count("found")
    _look_at_position(cluster, view, served, report)
    wrong = shape_finding(served, schema.fields, view.key)
    if wrong is not None:
        report.findings.append(wrong)
    if report.findings:
        return
    fold = TopicFold(
        cluster,
        scratch,
        PlainRows(schema.fields, view.topic.key, view.key),
        served.topic,
        {},
        served.offsets,
        refused_places(cluster, view, served.topic, served.offsets),
        same_key=set(view.key) == set(view.topic.key),
        count=count,
    )
    fold.run()
    report.records, report.dead, report.unprovable = fold.records, fold.dead, fold.unprovable
    if fold.unnoted:
        report.findings.append(unnoted_finding(view, fold.unnoted))
    if fold.unprovable:
        report.unprovable_rows = scratch.set_aside_underived()
    sameness = Sameness(schema.fields, floats_add_up=False)
    scratch.compare(sample=sample, differing=sameness.of_rows).tell(report)


def _look_at_position(cluster: Cluster, view: View, served: Served, report: Report) -> None:
    hint = f"headrace view rebuild builds {view.name} anew"
    topic = cluster.topic(view.topic.name)
    if topic is None or (served.topic, served.topic_id) != (topic.name, topic.id):
        gone = "is not in the log" if topic is None else "was made again since"
        report.findings.append(Finding("position", f"it follows {served.topic}, which {gone}", hint))
        return
    ends = cluster.ends(served.topic, committed=False)
    for number, at in sorted(served.offsets.items()):
        end = ends.get(number, 0)
        if at > end or at < 0:
            message = f"it is at offset {at} of {served.topic}/{number}, which ends at {end}"
            report.findings.append(Finding("position", message, hint))
    report.behind = sum(max(0, end - served.offsets.get(one, 0)) for one, end in ends.items())


def shape_finding(served: Served, fields: tuple[object, ...], key: tuple[str, ...]) -> Finding | None:
    """Whether the view was built for other columns, or for another key."""
    if tuple(served.fields) == fields and served.key == tuple(key):
        return None
    return Finding(
        "shape",
        f"it was built with the columns {', '.join(one.name for one in served.fields)} and the key"
        f" {', '.join(served.key)}, and its topic is of another shape now",
        "its follower builds it anew when it runs",
    )


def unnoted_finding(view: View, unnoted: list[str]) -> Finding:
    return Finding(
        "books",
        f"{len(unnoted)} records fit no row and are no dead letters in {view.dead_topic}; the first is {unnoted[0]}",
    )
