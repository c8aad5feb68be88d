"""A proof is about the rows that were served then: it is outdated after a switch or a rebuild, and names a jump."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations_writer import GenerationsWriter
from headrace.client.records import write
from headrace.model.progress import Generation, encode
from headrace.ops.verify.outdated import OutdatedProofs, view_digest
from headrace.ops.verify.report import Report, last_reports, save_report
from headrace.runtime.proofs import Proofs
from headrace.settings import Settings


@dataclass(frozen=True)
class Ride:
    ride: str
    minutes: int


def _before_minutes(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"minutes": 0, **value}


def _renamed(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"minutes": value.get("duration", 0), **value}


def plain(name: str, fields: type = Ride, key: Any = None, upcast: Any = None) -> App:
    """An app with a view of a topic that no flow writes."""
    app = App(name)
    app.view(name, app.topic(name, fields, key="ride", upcast=upcast), key=key or "ride")
    return app


def test_a_proof_of_a_topic_that_no_flow_writes_is_outdated_after_a_change_of_the_view_or_the_topic(
    cluster: Cluster,
) -> None:
    name = f"plain-{uuid.uuid4().hex[:8]}"
    app = plain(name, upcast=_before_minutes)
    topic_id = cluster.ensure_topic(name, 1).id
    report = Report(app=name, what="view", name=name, topic=name, topic_id=topic_id)
    report.view_digest = view_digest(app, app.views[0])
    assert OutdatedProofs(cluster, plain(name, upcast=_before_minutes)).line(report) == ""
    wider = make_dataclass("Ride", [("ride", str), ("minutes", int), ("bike", str, "")], frozen=True)
    for changed in (
        plain(name, wider, upcast=_before_minutes),
        plain(name, upcast=_renamed),
        plain(name, key=["minutes"], upcast=_before_minutes),
    ):
        assert OutdatedProofs(cluster, changed).line(report) == (
            f"view {name}: outdated: proven, but the columns, the key or the upcasters of the view have changed since"
        )
    cluster.delete_topic(name)
    cluster.ensure_topic(name, 1)
    assert OutdatedProofs(cluster, app).line(report) == (
        f"view {name}: outdated: proven, but topic {name} was created again since"
    )
    # An earlier release did not record what the view was built from.
    assert OutdatedProofs(cluster, app).line(Report(app=name, what="view", name=name, topic=name)) == ""


def test_a_proof_of_another_generation_than_the_serving_one_is_outdated(cluster: Cluster) -> None:
    name = f"derived-{uuid.uuid4().hex[:8]}"
    app = App(name)
    rides = app.topic(name, Ride, key="ride")
    known = app.topic(f"{name}-known", key="ride")
    flow = app.flow(reads=[rides], writes=known, name=name)(lambda rides: rides)
    app.view(name, known)
    generation = Generation(name, name, 1, "", [], known.name, "", ["ride"], [], "", 0)
    key, value = encode(generation)
    cluster.ensure_topic(flow.progress_topic, 1)
    write(cluster, flow.progress_topic, key.decode(), value, "a test")
    of_view = Report(app=name, what="view", name=name, topic=known.name, generation=1)
    of_flow = Report(app=name, what="flow", name=name, topic=known.name, generation=1, verdict="different")
    notes: list[str] = []
    proofs = Proofs(None, cluster, app, Settings(), (), {}, note=notes.append, warn=notes.append)
    proofs._record(of_view)
    assert [OutdatedProofs(cluster, app).line(report) for report in (of_view, of_flow)] == ["", ""]
    assert proofs.last(name).startswith("proven through batch -1 at ")
    with GenerationsWriter(cluster, flow) as writer:
        writer.begin_generation("", "a test")
        # A generation that is being built changes nothing that readers see.
        assert OutdatedProofs(cluster, app).line(of_view) == ""
        writer.write(writer.read().with_switch(2, "a test", 0).switched(0, 0))
    assert [OutdatedProofs(cluster, app).line(report) for report in (of_view, of_flow)] == [
        f"view {name}: outdated: proven for generation 1, but generation 2 serves now",
        f"flow {name}: outdated: different for generation 1, but generation 2 serves now",
    ]
    fresh = Proofs(None, cluster, app, Settings(), (), {}, note=notes.append, warn=notes.append)
    fresh._record(of_view)
    assert fresh.last(name) == "outdated, of generation 1"
    fresh.run(_stopped())


def _stopped() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


@pytest.mark.parametrize(
    ("late", "dead", "warning"),
    [
        (
            0,
            25,
            "warning: 2.5 % of the records are late or dead; in the last proof, of generation 1, it was 1.0 %",
        ),
        (
            12,
            9,
            "warning: 2.1 % of the records are late or dead; in the last proof, of generation 1, it was 1.0 %",
        ),
        (10, 10, ""),
        (0, 0, ""),
    ],
)
def test_a_proof_warns_if_the_share_of_late_and_dead_records_jumped(
    cluster: Cluster, late: int, dead: int, warning: str
) -> None:
    app = f"jump-{uuid.uuid4().hex[:8]}"
    facts: dict[str, Any] = {"app": app, "name": "rides", "topic": "rides", "records": 1_000}
    # A view of the same name has other shares.
    save_report(cluster, Report(what="view", generation=1, late=1_000, **facts))
    save_report(cluster, Report(what="flow", generation=1, late=4, dead=6, **facts))
    report = Report(what="flow", generation=2, late=late, dead=dead, **facts)
    save_report(cluster, report)
    # A proven report is printed as one line, with its warnings.
    assert report.short_lines() == [report.line(), *[f"  {warning}"] * bool(warning)]
    assert (f"{(late + dead) / 10:.1f} % of them late or dead" in report.line()) is bool(late or dead)
    assert next(last_reports(cluster, app)) == report
