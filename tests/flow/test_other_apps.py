"""An app that reads topics of another app: who owns a topic is checked before anything starts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.client.generations import find_generations
from headrace.client.generations_writer import GenerationsWriter
from headrace.model.errors import AppMistakes
from headrace.model.generations import Switch
from headrace.ops.schemas.start import expect_history_fits
from headrace.runtime.beside import OtherApps


@dataclass(frozen=True)
class Ride:
    ride: str


@dataclass(frozen=True)
class Length:
    ride: str
    letters: int


class Apps:
    """An app that derives a topic, and the names of its topics."""

    def __init__(self, world: FlowWorld) -> None:
        self.mark = uuid.uuid4().hex[:8]
        self.world = world
        self.first = App(f"bikes-{self.mark}")
        self.rides = self.first.topic(f"rides-{self.mark}", Ride, key="ride")
        self.lengths = self.first.topic(f"lengths-{self.mark}", key="ride")
        self.flow = self.first.flow(reads=[self.rides], writes=self.lengths, name="measure")(_measure)
        world.declare(self.first)
        world.write(self.rides, [Ride("a"), Ride("bb")])
        with world.running(self.first, follow=False) as run:
            run.wait_until_derived()

    def reader(self, topic: str, schema: type, of: str | None) -> App:
        app = App(f"reader-{self.mark}")
        app.topic(topic, schema, key="ride", of=of)
        return app

    def check(self, app: App) -> None:
        expect_history_fits(self.world.cluster, app, 0)


def _measure(rides: Any) -> Any:
    return rides.selectExpr("ride", "length(ride) AS letters")


@pytest.fixture(scope="module")
def apps(flow_world: FlowWorld) -> Apps:
    return Apps(flow_world)


def test_a_topic_of_another_app_is_declared_with_its_owner(apps: Apps) -> None:
    lengths = apps.lengths.name
    apps.check(apps.reader(lengths, Length, apps.first.name))
    for of, message in {
        None: f"is derived by flow 'measure' of app {apps.first.name!r}",
        "trains": f"declared as a topic of app 'trains', but app {apps.first.name!r} owns it",
    }.items():
        with pytest.raises(AppMistakes, match=message) as refused:
            apps.check(apps.reader(lengths, Length, of))
        (mistake,) = refused.value.mistakes
        assert (mistake.code, mistake.hint) == ("HR-APP-OF", f'declare it with of="{apps.first.name}"')
    with pytest.raises(AppMistakes, match="does not exist on this log"):
        apps.check(apps.reader(f"nothing-{apps.mark}", Length, "bikes"))


def test_the_records_of_another_app_must_fit_the_declared_schema(apps: Apps) -> None:
    @dataclass(frozen=True)
    class Wrong:
        ride: str
        metres: int

    with pytest.raises(AppMistakes, match="metres"):
        apps.check(apps.reader(apps.lengths.name, Wrong, apps.first.name))


def test_a_topic_of_a_flow_that_the_app_no_longer_declares_is_refused(apps: Apps) -> None:
    app = App(apps.first.name)
    app.topic(apps.lengths.name, Length, key="ride")
    with pytest.raises(AppMistakes, match="which the app no longer declares"):
        apps.check(app)


def test_a_switch_of_another_app_is_reported_once(apps: Apps) -> None:
    lines: list[str] = []
    others = OtherApps(
        apps.world.cluster, apps.reader(apps.lengths.name, Length, apps.first.name), lines.append
    )
    others.poll()
    with GenerationsWriter(apps.world.cluster, apps.flow) as writer:
        entry = writer.begin_generation("other", "a test")
        before = find_generations(apps.world.cluster, apps.lengths.name)
        assert before is not None
        switch = Switch(before.serving, entry.number, 0, 7)
        writer.write(msgspec.structs.replace(before, serving=entry.number, switches=(switch,)))
    others.poll()
    others.poll()
    (line,) = lines
    assert f"generation {entry.number} serves now, after generation 1; 7 records" in line
