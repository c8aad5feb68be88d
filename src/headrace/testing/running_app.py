"""Runs a whole app in the process of a test: the embedded broker, the flows, the followers, and optionally the server.

    with running(app, spark=spark, data=tmp_path) as shop:
        shop.write("visits", Visit("v1", "/", noon), Visit("v2", "/", later))
        shop.catch_up()
        assert shop.rows("pages") == [{"page": "/", "visits": 2, "last_at": later}]

It is the code of ``headrace run``; only the broker is a thread instead of a process, with a clock that the test drives.
A second ``running`` with the same ``data`` continues, also with a changed app.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.app import App
from headrace.client.generations import serving_progress_topic
from headrace.client.progress import Progress, flow_lag, wait_until_decided
from headrace.client.records import read
from headrace.errors import HeadraceError
from headrace.files import make_private_dir
from headrace.model.codec.codec import codec_of
from headrace.model.declarations import Flow, Topic, View
from headrace.model.graph import order
from headrace.model.schema import Schema
from headrace.ops.dead.dead_topic import dead_topics
from headrace.ops.dead.letter import Letter, build_record_of
from headrace.ops.verify.verifier import Verifier
from headrace.runtime.run import Run
from headrace.settings import FREE_SERVE_LISTEN, Settings
from headrace.stores.registry import open_reader
from headrace.stores.row_json import row_json
from headrace.stores.rows import key_order
from headrace.testing.broker import BrokerThread
from headrace.testing.clock import DrivenClock
from headrace.testing.local import local_settings
from headrace.testing.records import (
    DeadRecord,
    Deleted,
    InvalidSample,
    LateRecord,
    decode_row,
    encode_sample,
    time_of,
)
from headrace.testing.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.follow.follower import Follower
    from headrace.model.progress import Generation

__all__ = ["RunningApp", "running"]

_Declared = TypeVar("_Declared", Topic, View, Flow)
_CATCH_UP_S = 120.0
_NOTES_SHOWN = 20
_READ_S = 30.0
_WRITE_S = 30.0


@contextlib.contextmanager
def running(
    app: App,
    *,
    data: Path | None = None,
    spark: SparkSession | None = None,
    clock: DrivenClock | None = None,
    settings: Settings | None = None,
    rebuild_changed: bool = False,
    serve: bool = False,
) -> Iterator[RunningApp]:
    """Run the app until the block ends. Raise if a flow or a view has failed by then.

    ``data`` is the data directory (default: a temporary one). ``spark`` is a session that other tests may share;
    without it, an app with flows starts its own. ``clock`` is the clock of the broker (default: the machine's time).
    ``settings`` has the settings of flows, topics and views (default: ``headrace.toml`` and the environment).
    ``rebuild_changed`` starts a new generation of flows whose function changed. ``serve`` starts the HTTP server;
    ``RunningApp.url`` is its address.
    """
    with contextlib.ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-")))
        driven = clock or DrivenClock(time.time_ns() // 1_000_000, ticking=time.monotonic)
        own = local_settings(folder, settings)
        make_private_dir(folder)
        broker = stack.enter_context(BrokerThread(own.log_dir, driven))
        own = dataclasses.replace(own, log=dataclasses.replace(own.log, bootstrap_servers=broker.bootstrap))
        if serve:
            own = dataclasses.replace(own, serve=dataclasses.replace(own.serve, listen=FREE_SERVE_LISTEN))
        notes: list[str] = []
        run = Run(app, own, note=notes.append, rebuild_changed=rebuild_changed, spark=spark)
        try:
            run.start()
            running_app = RunningApp(run, driven, notes)
            yield running_app
            running_app.check()
        finally:
            run.close()


class RunningApp:
    """A running app. Reads return Python values, and show the state after the last ``catch_up``."""

    def __init__(self, run: Run, clock: DrivenClock, notes: list[str]) -> None:
        self.app = run.app
        self.data = run.settings.data
        self.clock = clock
        self.notes = notes
        """What ``headrace run`` would print."""
        self._run = run

    @property
    def bootstrap(self) -> str:
        """The address of the broker, for any Kafka client."""
        return self._run.cluster.bootstrap

    @property
    def url(self) -> str:
        """The address of the HTTP server; empty unless ``running(..., serve=True)``."""
        return self._run.server.address if self._run.server is not None else ""

    def check(self) -> None:
        """Raise the error of a flow or a view that has failed."""
        for part in self._run.failed:
            assert part.error is not None
            raise part.error

    # Writing

    def write(self, topic: Topic | str, *rows: Any) -> None:
        """Write rows to a topic, and return when the log has them. The clock gives their time in the log.

        A row is a dataclass, a mapping, a ``Deleted``, or the value of a record as bytes, which may not fit the schema.
        """
        declared = self._topic(topic)
        writer = self.app.writer_of(declared)
        if writer is not None or declared.schema is None:
            by = f"flow {writer.name!r} writes it" if writer is not None else "it has no schema"
            raise InvalidSample(f"a test cannot write to topic {declared.name!r}: {by}")
        producer = self._run.cluster.producer({"linger.ms": 0})
        for row in rows:
            key, value = encode_sample(declared, row)
            producer.produce(declared.name, key=key, value=value, timestamp=self.clock.now_ms())
        left = producer.flush(_WRITE_S)
        assert not left, f"the broker did not acknowledge {left} of {len(rows)} records within {_WRITE_S:g} s"

    # Waiting

    def catch_up(self, timeout_s: float = _CATCH_UP_S) -> None:
        """Wait until every flow has derived everything that is in its input, and every view has applied it.

        A real-time flow counts as caught up when its next progress record is written, after ``flow.realtime_ms``.
        """
        try:
            eventually(
                self._behind,
                [],
                what="the parts that are behind",
                timeout_s=timeout_s,
                check=self._check_assertion,
            )
        except AssertionError as failure:
            for line in self.notes[-_NOTES_SHOWN:]:
                failure.add_note(line)
            raise

    def _check_assertion(self) -> None:
        try:
            self.check()
        except HeadraceError as error:
            raise AssertionError(f"the app cannot catch up: {error}") from error

    def _behind(self) -> list[str]:
        """Describe each part that is behind. Inputs come first, so an empty list means that nothing is left to do."""
        run = self._run
        runners = {runner.status.name: runner for runner in run.flows}
        progress: dict[str, Progress] = {}
        behind = []
        for flow in order(self.app):
            runner = runners[flow.name]
            state = runner.current
            if state is None:
                return [f"flow {flow.name}: {runner.status.why or runner.status.state}"]
            progress[flow.name] = Progress(state.generation, state.last, state.generation_offset)
            lag = flow_lag(run.cluster, progress[flow.name])
            if lag or not runner.is_idle:
                behind.append(f"flow {flow.name}: {lag:,} records to read")
        for follower in run.followers:
            reason = self._view_behind(follower, progress)
            if reason:
                behind.append(f"view {follower.view.name}: {reason}")
        return behind

    def _view_behind(self, follower: Follower, progress: Mapping[str, Progress]) -> str:
        status, flow = follower.status, self.app.writer_of(follower.view.topic)
        if status.state != "following" or status.position is None:
            return status.reason or status.state
        position = status.position
        if flow is None or flow.is_realtime:
            lag = sum(
                max(0, end - position.offsets.get(number, 0))
                for number, end in self._run.cluster.ends(position.topic).items()
            )
            return f"{lag:,} records to apply" if lag else ""
        generation, last = progress[flow.name].generation.generation, progress[flow.name].last
        if position.generation != generation:
            return f"at generation {position.generation} of {generation}"
        if last is not None and position.batch != last.batch:
            return f"at batch {position.batch} of {last.batch}"
        return ""

    # Reading

    def rows(self, view: View | str) -> list[dict[str, Any]]:
        """Return the rows of a view, sorted by its key. The list is empty until the view is built."""
        declared = self._view(view)
        reader = open_reader(declared, self.app.name, self.data)
        if reader is None:
            return []
        with contextlib.closing(reader):
            state = reader.state(declared.name)
            if state is None:
                return []
            encoder = row_json(state.schema)
            codec = codec_of(Schema(declared.name, state.schema.fields))
            with reader.scan(declared.name, _READ_S) as (_, found):
                stored = sorted(found, key=key_order(state.schema))
            return [codec.decode(encoder.value(row)) for row in stored]

    def row(self, view: View | str, *key: Any) -> dict[str, Any] | None:
        """Return the row with this key, or None. A composite key has one value per field, in the view's order."""
        names = self._view(view).key
        if len(key) != len(names):
            raise InvalidSample(
                f"the key of view {self._view(view).name!r} is {', '.join(names)}, not {key!r}"
            )
        wanted = dict(zip(names, key, strict=True))
        return next((row for row in self.rows(view) if {name: row[name] for name in names} == wanted), None)

    def records(self, topic: Topic | str) -> list[dict[str, Any] | Deleted]:
        """Return the records of a topic, in the order of the log per partition. A derived topic is that of the current
        generation.
        """
        declared = self._topic(topic)
        flow = self.app.writer_of(declared)
        log = declared.name
        if flow is not None:
            generation = self._generation(flow)
            if generation is None:
                return []
            log = generation.output
        known = self._with_schema(declared)
        return [decode_row(known, message.key(), message.value()) for message in self._messages(log)]

    def late(self, flow: Flow | str) -> list[LateRecord]:
        """Return the late events that the current generation of a flow left out, in the order in which it read them. A
        flow that keeps late events leaves none out.
        """
        from headrace.flow.rejected import LATE_HEADER

        declared = self._flow(flow)
        generation = self._generation(declared)
        if generation is None:
            return []
        inputs = {source.log: source.topic for source in generation.inputs}
        late = []
        for message in self._messages(declared.late_topic):
            headers = dict(message.headers() or ())
            note = msgspec.json.decode(headers.get(LATE_HEADER) or message.value() or b"{}")
            if note["generation"] != generation.generation:
                continue
            topic = self._with_schema(self._topic(inputs[note["topic"]]))
            at = {note["partition"]: (note["offset"], note["offset"] + 1)}
            for record in read(self._run.cluster, note["topic"], at):
                row = decode_row(topic, record.key(), record.value())
                assert isinstance(row, dict)
                late.append(LateRecord(topic.name, row, time_of(note["newest_us"])))
        return late

    def dead(self, part: Flow | View | str) -> list[DeadRecord]:
        """Return the records that a flow or a view rejected, with the reasons; a record that several generations
        rejected only once.
        """
        name = part if isinstance(part, str) else part.name
        kinds = (
            {"flow"} if isinstance(part, Flow) else {"view"} if isinstance(part, View) else {"flow", "view"}
        )
        topics = [topic for topic in dead_topics(self.app) if topic.owner == name and topic.kind in kinds]
        if not topics:
            raise InvalidSample(f"app {self.app.name!r} has no flow and no view named {name!r}")
        letters = {
            letter.id: letter
            for topic in topics
            for message in self._messages(topic.name)
            if build_record_of(message) is None
            for letter in [Letter.of(message)]
        }
        return [
            DeadRecord(
                letter.origin.topic if letter.origin else "",
                *(letter.reason, letter.message, letter.value, letter.key),
            )
            for letter in letters.values()
        ]

    def verify(self) -> None:
        """Derive every view and flow again from the log. Raise ``AssertionError`` unless each is as derived."""
        run = self._run
        arguments = (run.spark, run.cluster, self.app, run.settings, run.compiled, run.schemas)
        problems: list[str] = []
        with Verifier(*arguments) as verifier:
            for report in verifier.all():
                if isinstance(report, HeadraceError):
                    problems.append(str(report))
                elif not report.proven:
                    problems += report.lines()
        assert not problems, "\n".join(problems)

    def _generation(self, flow: Flow) -> Generation | None:
        """Return the current generation of a running flow, when readers can see everything that it has committed."""
        wait_until_decided(self._run.cluster, serving_progress_topic(self._run.cluster, flow))
        runner = next(runner for runner in self._run.flows if runner.status.name == flow.name)
        return runner.current.generation if runner.current is not None else None

    def _messages(self, log: str) -> Sequence[Any]:
        cluster = self._run.cluster
        if cluster.topic(log) is None:
            return []
        starts, ends = cluster.starts(log), cluster.ends(log)
        return list(read(cluster, log, {number: (starts[number], end) for number, end in ends.items()}))

    def _with_schema(self, topic: Topic) -> Topic:
        schema = topic.schema or self._run.schemas.get(topic.name)
        assert schema is not None, f"the schema of topic {topic.name!r} is not known yet"
        return dataclasses.replace(topic, schema=schema)

    # Declarations by name

    def _topic(self, topic: Topic | str) -> Topic:
        return _named("topic", self.app, self.app.topics, topic)

    def _view(self, view: View | str) -> View:
        return _named("view", self.app, self.app.views, view)

    def _flow(self, flow: Flow | str) -> Flow:
        return _named("flow", self.app, self.app.flows, flow)


def _named(what: str, app: App, declared: Sequence[_Declared], wanted: _Declared | str) -> _Declared:
    name = wanted if isinstance(wanted, str) else wanted.name
    found = next((candidate for candidate in declared if candidate.name == name), None)
    if found is None:
        names = ", ".join(candidate.name for candidate in declared) or "none"
        raise InvalidSample(f"app {app.name!r} has no {what} {name!r}", hint=f"its {what}s: {names}")
    return found
