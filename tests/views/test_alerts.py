"""Alerts reach the log before records are lost, once per change, even across restarts."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from faults.servers.headrace_broker import start_headrace
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until
from headrace.cli.app_state import lag_monitor
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.model.declarations import alerts_topic
from headrace.ops.alerts.alert_log import AlertLog, AlertRecord, WatcherReplaced, history, last_records
from headrace.ops.alerts.rules import rules_of
from headrace.ops.alerts.watch import AlertWatch
from headrace.runtime.part import Part
from headrace.settings import AlertSettings
from tests.cli.runner import Headrace
from tests.views.test_lag import commit, write

Fresh = Callable[[str], str]
SMALL = {"internal.segment.bytes": "2000", "retention.ms": "-1"}
RETENTION_BYTES = 40_000
EVERY_S = 0.02


class Scene:
    """A started flow without progress, and its alert watch."""

    def __init__(self, cluster: Cluster, name: str, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        self.flow = ScriptedFlow(cluster, name, partitions=1)
        self.app = self.flow.app
        self.app.name = name
        self.source = self.flow.flow.reads[0].name
        self.notes: list[str] = []
        self.warnings: list[str] = []

    @contextlib.contextmanager
    def watched(self, **settings: Any) -> Iterator[tuple[AlertWatch, Part]]:
        stop = threading.Event()
        self.monitor = monitor = lag_monitor(self.cluster, self.app, self.home)
        rules = rules_of(self.app, AlertSettings(**settings))
        watch = AlertWatch(
            self.cluster, monitor, rules, EVERY_S, note=self.notes.append, warn=self.warnings.append
        )
        part = Part("alerts", watch.run, stop)
        part.start()
        try:
            yield watch, part
        finally:
            stop.set()
            assert part.join(30)
            monitor.close()

    def history(self) -> list[tuple[str, str, str]]:
        return [
            (record.alert, record.name, record.state) for record in history(self.cluster, self.app.name, 100)
        ]


@pytest.fixture
def scene(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> Scene:
    return Scene(cluster, fresh("alarm"), tmp_path)


def wait_for_evaluation(watch: AlertWatch, part: Part) -> None:
    """Wait for an evaluation that starts after this call, and for its writes."""
    for _ in range(2):
        before = watch.evaluated_ms
        until(
            lambda before=before: watch.evaluated_ms != before or part.error, "an evaluation", pause_s=0.005
        )  # type: ignore[misc]
    assert part.error is None, part.error


def test_an_alert_is_in_the_log_before_the_first_unread_record_is_deleted(scene: Scene) -> None:
    cluster, source, flow = scene.cluster, scene.source, scene.flow.flow.name
    cluster.ensure_topic(source, 1, {**SMALL, "retention.bytes": str(RETENTION_BYTES)})
    write(cluster, source, 20)
    scene.flow.begin()
    scene.flow.batch([], consumed=10)
    with scene.watched() as (watch, part):
        fired: list[tuple[str, str, str]] = []
        while not fired:
            write(cluster, source, 15)
            wait_for_evaluation(watch, part)
            fired = scene.history()
            assert cluster.starts(source) == {0: 0}, "a record was deleted before an alert fired"
        assert fired == [("time-to-loss", flow, "firing")]
        (record,) = last_records(cluster, scene.app.name).values()
        assert record.measures["time_to_loss"] is not None
        assert record.measures["lag"] == scene.monitor.lags[0].records or record.at_ms < (
            watch.evaluated_ms or 0
        )
        assert scene.warnings == [f"alert time-to-loss: {record.text} ({record.when})"]
        # The flow still makes no progress, so retention deletes unread records.
        while cluster.starts(source)[0] <= 10:
            write(cluster, source, 100)
        until(lambda: ("lost", flow, "firing") in scene.history(), "the loss is reported")
    assert scene.history()[0] == ("time-to-loss", flow, "firing")
    assert [change for change in scene.history() if change[0] == "time-to-loss"] == [fired[0]]


def test_each_change_is_reported_once_and_not_again_by_the_next_watcher(scene: Scene) -> None:
    cluster, source, group = scene.cluster, scene.source, f"{scene.app.name}-billing"
    cluster.ensure_topic(source, 1)
    write(cluster, source, 30)
    commit(cluster, group, source, 5)
    scene.app.alert("backlog", "lag > 20 on groups")
    only = {"defaults": False}
    with scene.watched(**only) as (watch, part):
        until(lambda: watch.firing, "it fires")
        wait_for_evaluation(watch, part)
        assert scene.history() == [("backlog", group, "firing")]
        assert watch.fired == {"backlog": 1}
    with scene.watched(**only) as (watch, part):
        wait_for_evaluation(watch, part)
        assert scene.history() == [("backlog", group, "firing")]
        assert scene.notes == [f"alert backlog is still firing: group {group}: 25 records to read"]
        commit(cluster, group, source, 25)
        until(lambda: not watch.firing and watch.evaluated_ms, "it is resolved")
    assert scene.history() == [("backlog", group, "firing"), ("backlog", group, "resolved")]
    assert (len(scene.warnings), watch.fired) == (1, {"backlog": 0})
    assert scene.notes[-1] == f"alert backlog is resolved: group {group}: 5 records to read"
    assert cluster.configs(alerts_topic(scene.app.name))["cleanup.policy"] == "compact"


def test_only_the_watcher_started_last_writes(scene: Scene) -> None:
    scene.cluster.ensure_topic(scene.source, 1)
    scene.app.alert("backlog", "lag > 0 on flows")
    with scene.watched() as (first, part):
        wait_for_evaluation(first, part)
        with scene.watched() as (second, _):
            until(lambda: second.evaluated_ms, "the second evaluates")
            write(scene.cluster, scene.source, 1)
            until(lambda: second.firing, "the second fires")
            until(lambda: part.error, "the first is replaced")
    assert isinstance(part.error, WatcherReplaced)
    assert scene.history() == [("backlog", scene.flow.flow.name, "firing")]


def test_a_watcher_survives_a_killed_broker_and_reports_each_change_once(tmp_path: Path) -> None:
    server = start_headrace(tmp_path / "broker")
    try:
        cluster = Cluster(server.bootstrap, timeout_s=3.0)
        scene = Scene(cluster, "alarm", tmp_path)
        source, group = scene.source, "billing"
        cluster.ensure_topic(source, 1)
        write(cluster, source, 30)
        commit(cluster, group, source, 5)
        scene.app.alert("backlog", "lag > 20 on groups")
        with scene.watched(defaults=False) as (watch, part):
            until(lambda: watch.firing, "it fires")
            server.kill()
            until(
                lambda: any("cannot watch for alerts" in line for line in scene.warnings) or part.error,
                "the broker is down",
            )
            assert part.error is None, part.error
            server = start_headrace(tmp_path / "broker", port=server.port)
            until(lambda: "watching for alerts again" in scene.notes, "it is back")
            wait_for_evaluation(watch, part)
            assert scene.history() == [("backlog", group, "firing")]
            commit(cluster, group, source, 30)
            until(lambda: not watch.firing or part.error, "it is resolved")
        assert part.error is None
        assert scene.history() == [("backlog", group, "firing"), ("backlog", group, "resolved")]
        assert len([line for line in scene.warnings if line.startswith("alert backlog")]) == 1
    finally:
        server.kill()


def test_an_expired_writer_may_retry_but_a_replaced_writer_may_not(
    tmp_path: Path,
) -> None:
    options = [
        "--set",
        "transactional.id.expiration.ms=2000",
        "--set",
        "log.retention.check.interval.ms=50",
    ]
    server = start_headrace(tmp_path / "broker", options)
    try:
        cluster = Cluster(server.bootstrap, timeout_s=10.0)
        alert = AlertRecord("shop", "backlog", "group", "billing", "firing", 1, 1, "lag > 20", "late")
        with contextlib.closing(AlertLog(cluster, "shop")) as expired_log:
            until(lambda: "removed the transactional id" in server.log.read_text(), "it is forgotten")
            with pytest.raises(LogError) as refused:
                expired_log.write([alert])
            assert refused.value.retriable, refused.value
        with (
            contextlib.closing(AlertLog(cluster, "shop")) as old,
            contextlib.closing(AlertLog(cluster, "shop")) as new,
        ):
            new.write([alert])
            with pytest.raises(WatcherReplaced) as replaced:
                old.write([alert])
            assert not replaced.value.retriable
        assert list(last_records(cluster, "shop")) == [alert.key]
    finally:
        server.kill()


def test_an_alert_fires_before_retention_by_time_deletes_unread_records(tmp_path: Path) -> None:
    server = start_headrace(tmp_path / "broker", ["--set", "log.retention.check.interval.ms=20"])
    try:
        cluster = Cluster(server.bootstrap, timeout_s=10.0)
        scene = Scene(cluster, "alarm", tmp_path)
        source, flow = scene.source, scene.flow.flow.name
        cluster.ensure_topic(source, 1, {"internal.segment.bytes": "2000", "retention.ms": "3600000"})
        # More than half of the retention time is over, and nothing is deleted yet.
        write(cluster, source, 40, age_ms=1_900_000)
        scene.flow.begin()
        scene.flow.batch([], consumed=5)
        with scene.watched() as (_, part):
            fired = until(scene.history, "it fires")
            assert fired == [("time-to-loss", flow, "firing")]
            assert cluster.starts(source) == {0: 0}, "a record was deleted before an alert fired"
            entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, source, incremental_configs=[entry])
            next(iter(cluster.admin().incremental_alter_configs([resource]).values())).result(10)
            until(lambda: cluster.starts(source)[0] > 5 or part.error, "retention deletes the records")
            until(lambda: ("lost", flow, "firing") in scene.history() or part.error, "the loss is reported")
        assert part.error is None
        assert [change for change in scene.history() if change[2] == "firing"] == [
            fired[0],
            ("lost", flow, "firing"),
        ]
    finally:
        server.kill()


APP = """
from dataclasses import dataclass
from headrace import App

@dataclass(frozen=True)
class Order:
    order: str

app = App({name!r})
orders = app.topic({topic!r}, Order, key="order")
app.view({view!r}, orders)
app.alert("stuck", "lag > 2 for 0s", on="group {name}-mail")
"""


def test_a_run_shows_firing_alerts_and_keeps_them_after_a_kill(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, topic, view = fresh("run"), fresh("orders"), fresh("view")
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(APP.format(name=name, topic=topic, view=view))
    (tmp_path / "headrace.toml").write_text('[alerts]\nevery_s = 1\nrules.old = "age > 10m on views"\n')
    headrace = Headrace(cluster.bootstrap)
    assert [rule["alert"] for rule in headrace.ok("alert", "rules", f"{module}:app", "--json").json] == [
        *("time-to-loss", "lost", "dead-letters", "stuck", "old")
    ]
    assert headrace.ok("alert", "list", f"{module}:app").err == f"no alert of app {name} is firing\n"
    cluster.ensure_topic(topic, 1)
    write(cluster, topic, 9)
    commit(cluster, f"{name}-mail", topic, 3)
    words = ("run", f"{module}:app", "--json", "--data", str(tmp_path), "--metrics", "127.0.0.1:0")
    with headrace.started(*words) as process:
        assert process.stdout is not None
        lines = map(json.loads, process.stdout)
        printed = [line for line in _until_firing(lines) if line["kind"] != "summary"]
        texts = [line["text"] for line in printed]
        address = next(text for text in texts if text.startswith("metrics are at ")).split()[-1]
        # No record is an Order: nine dead letters, and six records that the group has not read.
        warnings = {line["text"] for line in printed if line["kind"] == "warning"}
        assert (
            f"alert stuck: group {name}-mail: 6 records to read (lag > 2 for 0s on group {name}-mail)"
            in warnings
        )
        assert f"alert dead-letters: view {view}: 9 open dead letters (dead > 0)" in warnings
        page = urllib.request.urlopen(address, timeout=30).read().decode()
        process.kill()
        process.wait(60)
    labels = f'app="{name}",what="group",name="{name}-mail"'
    assert f'headrace_alert_firing{{app="{name}",alert="stuck",what="group",name="{name}-mail"}} 1' in page
    assert f'headrace_alerts_fired_total{{app="{name}",alert="stuck"}} 1' in page
    assert f"headrace_lag_records{{{labels}}} 6" in page
    assert f'kafka_consumergroup_lag{{consumergroup="{name}-mail",topic="{topic}",partition="0"}} 6' in page
    assert f'headrace_view_dead_total{{app="{name}",view="{view}"}} 9' in page
    assert f'headrace_view_repeats_total{{app="{name}",view="{view}"}} 0' in page
    listed = headrace.ok("alert", "list", f"{module}:app", "--json").json
    assert {alert["alert"]: alert["text"] for alert in listed} == {
        "stuck": f"group {name}-mail: 6 records to read",
        "dead-letters": f"view {view}: 9 open dead letters",
    }
    assert len(headrace.ok("alert", "list", f"{module}:app", "--history", "--json").json) == 2
    shown = headrace.ok("lag", "--app", f"{module}:app", "--data", str(tmp_path), "--json").json
    assert {(lag["what"], lag["name"], lag["lag"]) for lag in shown} == {
        ("view", view, 0),
        ("group", f"{name}-mail", 6),
    }
    # A watch in another process continues where the killed run stopped.
    commit(cluster, f"{name}-mail", topic, 9)
    words = ("alert", "watch", f"{module}:app", "--data", str(tmp_path), "--once")
    watched = headrace.ok(*words).err
    assert "alert stuck is still firing" in watched
    assert "alert stuck is resolved" in watched


def _until_firing(lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield line
        if line["kind"] == "summary" and len(line["alerts"]) == 2:
            return
