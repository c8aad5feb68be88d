"""Results of verifications, in the log: a compacted topic, of which the last result for each view and flow counts.

``headrace.verify``: the key is ``<app>/<view>``, or ``<app>/flow/<flow>``; the value is a ``Report`` as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.client.writing import write
from headrace.ops.report import Report

__all__ = ["TOPIC", "keep", "last_results"]

TOPIC = "headrace.verify"
_decoder = msgspec.json.Decoder(Report)


def keep(cluster: Cluster, report: Report) -> None:
    """In the log when this returns."""
    cluster.ensure_topic(TOPIC, 1, {"cleanup.policy": "compact"})
    write(cluster, TOPIC, _key(report), msgspec.json.encode(report), f"keeping the result in {TOPIC!r}")


def last_results(cluster: Cluster, app: str) -> Iterator[Report]:
    """The newest one of each view and flow of the app, in the order of their names."""
    if cluster.topic(TOPIC) is None:
        return
    starts, ends = cluster.starts(TOPIC), cluster.ends(TOPIC)
    found: dict[tuple[str, str], Report] = {}
    for message in read(cluster, TOPIC, {one: (starts[one], end) for one, end in ends.items()}):
        try:
            report = _decoder.decode(message.value() or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # Of another release, or nobody's: there is a newer one, or there will be.
        if report.app == app:
            found[report.what, report.name] = report
    yield from (found[one] for one in sorted(found))


def _key(report: Report) -> str:
    return f"{report.app}/{report.name}" if report.what == "view" else f"{report.app}/flow/{report.name}"
