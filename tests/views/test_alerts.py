"""Alerts about what is about to be lost: in the log before it is, once per change, over restarts."""

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

from bench.faults.flow_by_hand import FlowByHand
from headrace.cli.app_lag import stored_readers
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.model.alert import alerts_topic
from headrace.ops.alerts.alert_log import AlertLog, WatcherReplaced, history, last_records
from headrace.ops.alerts.record import AlertRecord
from headrace.ops.alerts.rules import rules_of
from headrace.ops.alerts.watch import AlertWatch
from headrace.runtime.part import Part
from headrace.settings import AlertSettings
from tests.cli.runner import Headrace
from tests.support.embedded import start_headrace
from tests.support.waiting import until
from tests.views.test_lag import commit, write

Fresh = Callable[[str], str]
SMALL = {"internal.segment.bytes": "2000", "retention.ms": "-1"}
KEPT_BYTES = 40_000
EVERY_S = 0.02


class Scene:
    """A flow that has begun and stands still, and what watches it."""

    def __init__(self, cluster: Cluster, name: str, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        self.flow = FlowByHand(cluster, name, partitions=1)
        self.app = self.flow.app
        self.app.name = name
        self.source = self.flow.flow.reads[0].name
        self.told: list[str] = []
        self.warned: list[str] = []

    @contextlib.contextmanager
    def watched(self, **settings: Any) -> Iterator[tuple[AlertWatch, Part]]:
        stop = threading.Event()
        watch = AlertWatch(
            self.cluster,
            self.app.name,
            rules_of(self.app, AlertSettings(**settings)),
            stored_readers(self.cluster, self.app, self.home),
            EVERY_S,
            tell=self.told.append,
            warn=self.warned.append,
        )
        part = Part("alerts", watch.run, stop)
        part.start()
        try:
            yield watch, part
        finally:
            stop.set()
            assert part.join(30)

    def history(self) -> list[tuple[str, str, str]]:
        return [(one.alert, one.name, one.state) for one in history(self.cluster, self.app.name, 100)]


@pytest.fixture
def scene(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> Scene:
    return Scene(cluster, fresh("alarm"), tmp_path)


def looked_again(watch: AlertWatch, part: Part) -> None:
    """A whole look since now, the writing of what it found included."""
    for _ in range(2):
        before = watch.looked_ms
        until(lambda before=before: watch.looked_ms != before or part.error, "a look", pause_s=0.005)  # type: ignore[misc]
    assert part.error is None, part.error


def test_an_alert_is_in_the_log_before_the_first_unread_record_is_removed(scene: Scene) -> None:
    cluster, source, flow = scene.cluster, scene.source, scene.flow.flow.name
    cluster.ensure_topic(source, 1, {**SMALL, "retention.bytes": str(KEPT_BYTES)})
    write(cluster, source, 20)
    scene.flow.begin()
    scene.flow.batch([], consumed=10)
    with scene.watched() as (watch, part):
        fired: list[tuple[str, str, str]] = []
        while not fired:
            write(cluster, source, 15)
            looked_again(watch, part)
            fired = scene.history()
            assert cluster.starts(source) == {0: 0}, "a record was removed, and nothing was said before"
        assert fired == [("time-to-loss", flow, "firing")]
        (record,) = last_records(cluster, scene.app.name).values()
        assert record.measures["time_to_loss"] is not None
        assert record.measures["lag"] == watch.lags[0].records or record.at_ms < (watch.looked_ms or 0)
        assert scene.warned == [f"alert time-to-loss: {record.text} ({record.when})"]
        # Nobody acts, so it comes as it was said.
        while cluster.starts(source)[0] <= 10:
            write(cluster, source, 100)
        until(lambda: ("lost", flow, "firing") in scene.history(), "the loss is told")
    assert scene.history()[0] == ("time-to-loss", flow, "firing")
    assert [one for one in scene.history() if one[0] == "time-to-loss"] == [fired[0]]


def test_what_fires_is_said_once_per_change_and_not_again_by_the_next_watcher(scene: Scene) -> None:
    cluster, source, group = scene.cluster, scene.source, f"{scene.app.name}-billing"
    cluster.ensure_topic(source, 1)
    write(cluster, source, 30)
    commit(cluster, group, source, 5)
    scene.app.alert("backlog", "lag > 20 on groups")
    only = {"defaults": False}
    with scene.watched(**only) as (watch, part):
        until(lambda: watch.firing, "it fires")
        looked_again(watch, part)
        assert scene.history() == [("backlog", group, "firing")]
        assert watch.fired == {"backlog": 1}
    with scene.watched(**only) as (watch, part):
        looked_again(watch, part)
        assert scene.history() == [("backlog", group, "firing")]
        assert scene.told == [f"alert backlog fires still: group {group}: 25 records to read"]
        commit(cluster, group, source, 25)
        until(lambda: not watch.firing and watch.looked_ms, "it is over")
    assert scene.history() == [("backlog", group, "firing"), ("backlog", group, "resolved")]
    assert (len(scene.warned), watch.fired) == (1, {"backlog": 0})
    assert scene.told[-1] == f"alert backlog is over: group {group}: 5 records to read"
    assert cluster.configs(alerts_topic(scene.app.name))["cleanup.policy"] == "compact"


def test_only_the_last_who_began_to_watch_writes(scene: Scene) -> None:
    scene.cluster.ensure_topic(scene.source, 1)
    scene.app.alert("backlog", "lag > 0 on flows")
    with scene.watched() as (first, part):
        looked_again(first, part)
        with scene.watched() as (second, _):
            until(lambda: second.looked_ms, "the second looks")
            write(scene.cluster, scene.source, 1)
            until(lambda: second.firing, "the second has said it")
            until(lambda: part.error, "the first is told")
    assert isinstance(part.error, WatcherReplaced)
    assert scene.history() == [("backlog", scene.flow.flow.name, "firing")]


def test_a_watcher_outlasts_a_killed_broker_and_says_each_change_once(tmp_path: Path) -> None:
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
                lambda: any("cannot be watched" in one for one in scene.warned) or part.error,
                "the broker is gone",
            )
            assert part.error is None, part.error
            server = start_headrace(tmp_path / "broker", port=server.port)
            until(lambda: "alerts are watched again" in scene.told, "it is back")
            looked_again(watch, part)
            assert scene.history() == [("backlog", group, "firing")]
            commit(cluster, group, source, 30)
            until(lambda: not watch.firing or part.error, "it is over")
        assert part.error is None
        assert scene.history() == [("backlog", group, "firing"), ("backlog", group, "resolved")]
        assert len([one for one in scene.warned if one.startswith("alert backlog")]) == 1
    finally:
        server.kill()


def test_a_writer_that_the_broker_has_forgotten_is_opened_anew_and_one_that_was_replaced_is_not(
    tmp_path: Path,
) -> None:
    forgetful = [
        "--set",
        "transactional.id.expiration.ms=2000",
        "--set",
        "log.retention.check.interval.ms=50",
    ]
    server = start_headrace(tmp_path / "broker", forgetful)
    try:
        cluster = Cluster(server.bootstrap, timeout_s=10.0)
        fires = AlertRecord("shop", "backlog", "group", "billing", "firing", 1, 1, "lag > 20", "late")
        with contextlib.closing(AlertLog(cluster, "shop")) as quiet:
            until(lambda: "forgot the transactional id" in server.log.read_text(), "it is forgotten")
            with pytest.raises(LogError) as refused:
                quiet.write([fires])
            assert refused.value.retriable, refused.value
        with (
            contextlib.closing(AlertLog(cluster, "shop")) as old,
            contextlib.closing(AlertLog(cluster, "shop")) as new,
        ):
            new.write([fires])
            with pytest.raises(WatcherReplaced) as replaced:
                old.write([fires])
            assert not replaced.value.retriable
        assert list(last_records(cluster, "shop")) == [fires.key]
    finally:
        server.kill()


def test_an_alert_comes_before_a_retention_by_time_takes_what_was_not_read(tmp_path: Path) -> None:
    server = start_headrace(tmp_path / "broker", ["--set", "log.retention.check.interval.ms=20"])
    try:
        cluster = Cluster(server.bootstrap, timeout_s=10.0)
        scene = Scene(cluster, "alarm", tmp_path)
        source, flow = scene.source, scene.flow.flow.name
        cluster.ensure_topic(source, 1, {"internal.segment.bytes": "2000", "retention.ms": "3600000"})
        # Half of its time is over: nothing is removed yet.
        write(cluster, source, 40, age_ms=1_900_000)
        scene.flow.begin()
        scene.flow.batch([], consumed=5)
        with scene.watched() as (_, part):
            fired = until(scene.history, "it fires")
            assert fired == [("time-to-loss", flow, "firing")]
            assert cluster.starts(source) == {0: 0}, "a record was removed, and nothing was said before"
            sooner = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, source, incremental_configs=[sooner])
            next(iter(cluster.admin().incremental_alter_configs([resource]).values())).result(10)
            until(lambda: cluster.starts(source)[0] > 5 or part.error, "retention has taken it")
            until(lambda: ("lost", flow, "firing") in scene.history() or part.error, "the loss is told")
        assert part.error is None
        assert [one for one in scene.history() if one[2] == "firing"] == [fired[0], ("lost", flow, "firing")]
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


def test_a_run_watches_shows_serves_and_keeps_what_fires(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, topic, view = fresh("run"), fresh("orders"), fresh("view")
    module = name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(APP.format(name=name, topic=topic, view=view))
    (tmp_path / "headrace.toml").write_text('[alerts]\nevery_s = 1\nrules.old = "age > 10m on views"\n')
    headrace = Headrace(cluster.bootstrap)
    assert [one["alert"] for one in headrace.ok("alert", "rules", f"{module}:app", "--json").json] == [
        *("time-to-loss", "lost", "dead-letters", "stuck", "old")
    ]
    assert headrace.ok("alert", "list", f"{module}:app").err == f"no alert of app {name} fires\n"
    cluster.ensure_topic(topic, 1)
    write(cluster, topic, 9)
    commit(cluster, f"{name}-mail", topic, 3)
    words = ("run", f"{module}:app", "--json", "--data", str(tmp_path), "--metrics", "127.0.0.1:0")
    with headrace.started(*words) as process:
        assert process.stdout is not None
        lines = map(json.loads, process.stdout)
        said = [line for line in _until_firing(lines) if line["kind"] != "look"]
        texts = [line["text"] for line in said]
        address = next(text for text in texts if text.startswith("metrics are at ")).split()[-1]
        # What it writes is no order: nine dead letters, and six records that the mail has not read.
        warned = {line["text"] for line in said if line["kind"] == "warning"}
        assert (
            f"alert stuck: group {name}-mail: 6 records to read (lag > 2 for 0s on group {name}-mail)"
            in warned
        )
        assert f"alert dead-letters: view {view}: 9 dead letters (dead > 0)" in warned
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
    told = headrace.ok("alert", "list", f"{module}:app", "--json").json
    assert {one["alert"]: one["text"] for one in told} == {
        "stuck": f"group {name}-mail: 6 records to read",
        "dead-letters": f"view {view}: 9 dead letters",
    }
    assert len(headrace.ok("alert", "list", f"{module}:app", "--history", "--json").json) == 2
    shown = headrace.ok("lag", "--app", f"{module}:app", "--data", str(tmp_path), "--json").json
    assert {(one["what"], one["name"], one["lag"]) for one in shown} == {
        ("view", view, 0),
        ("group", f"{name}-mail", 6),
    }
    # Watched from elsewhere, it goes on where the run was killed.
    commit(cluster, f"{name}-mail", topic, 9)
    words = ("alert", "watch", f"{module}:app", "--data", str(tmp_path), "--once")
    watched = headrace.ok(*words).err
    assert "alert stuck fires still" in watched
    assert "alert stuck is over" in watched


def _until_firing(lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield line
        if line["kind"] == "look" and len(line["alerts"]) == 2:
            return
