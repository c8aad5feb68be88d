"""The environment of an example: a log, a data directory, a Spark session when a flow needs one, and its output.

``python -m examples.tills.story`` starts all of them, in a temporary directory. The tests pass a running log and Spark
session, and compare the output with the README of the example.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.progress import current
from headrace.client.records import read
from headrace.model.declarations import Topic, View
from headrace.runtime.embedded import BrokerChild
from headrace.runtime.run import Run
from headrace.settings import AlertSettings, LogSettings, Settings
from headrace.stores.registry import open_reader

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import SparkSession

    from headrace.flow.runner import FlowRunner
    from headrace.follow.follower import Follower

__all__ = ["ROOT", "Stage", "on_stage"]

ROOT = Path(__file__).parents[1]
_TIMEOUT_S = 280.0
_POLL_S = 0.1


class Stage:
    """The environment of a story. ``spark`` starts the Spark session; it is called when the first flow runs."""

    def __init__(
        self, bootstrap: str, data: Path, spark: Callable[[], SparkSession], say: Callable[[str], None]
    ) -> None:
        self.cluster = Cluster(bootstrap)
        self.data = data
        self.say = say
        self.spark = spark
        self.settings = Settings(
            data=data, log=LogSettings(bootstrap_servers=bootstrap), alerts=AlertSettings(every_s=0)
        )

    def declare(self, app: App) -> None:
        """Create the topics that no flow writes, like ``headrace run``."""
        for topic in app.topics:
            if app.writer_of(topic) is None:
                ensure_declared(self.cluster, topic, topic.name, 1)

    def write(self, topic: Topic, events: list[Any]) -> None:
        """Write events and wait for their acknowledgement. An event can be a tuple of key and value in bytes."""
        producer = self.cluster.producer({"linger.ms": 5})
        for event in events:
            key, value = event if isinstance(event, tuple) else topic.encode(event)
            producer.produce(topic.name, value, key)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Message]:
        """Return all committed records of a topic with one partition."""
        return list(read(self.cluster, topic, {0: (0, self.cluster.ends(topic)[0])}))

    @contextlib.contextmanager
    def running(self, app: App) -> Iterator[Run]:
        """Run all flows and views of the app, like ``headrace run``, until the block ends."""
        spark = self.spark() if app.flows else None
        run = Run(app, self.settings, note=lambda line: None, spark=spark)
        try:
            run.start()
            yield run
        finally:
            run.close()
        for part in run.failed:
            assert part.error is not None
            raise part.error

    def settle(self, run: Run) -> None:
        """Wait until flows and views have processed all records."""
        self.wait(lambda: _is_done(self.cluster, run), "flows and views have processed all records")

    def served(self, app: App, views: Sequence[View], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until the stores of the views have caught up with the log."""
        behind = list(views)

        def done() -> bool:
            meanwhile()
            behind[:] = [view for view in behind if not self._serves(app, view)]
            return not behind

        self.wait(done, "every store has caught up with the log")

    def _serves(self, app: App, view: View) -> bool:
        reader = open_reader(view, app.name, self.data)
        if reader is None:
            return False
        with contextlib.closing(reader):
            state = reader.state(view.name)
        if state is None:
            return False
        flow = app.writer_of(view.topic)
        if flow is None:
            return state.position.offsets == self.cluster.ends(view.topic.name)
        progress = current(self.cluster, flow.progress_topic)
        if progress is None or progress.last is None:
            return False
        newest = progress.generation.generation, progress.last.batch
        return (state.position.generation, state.position.batch) == newest

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"timed out after {_TIMEOUT_S:.0f} s: {what}")
            time.sleep(_POLL_S)

    # Other processes

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a ``headrace`` command and wait for its end."""
        return subprocess.run(  # noqa: S603  our own command
            self._command(arguments),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a ``headrace`` command in the background."""
        return self._begin(self._command(arguments))

    def start_module(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start ``python -m module ADDRESS-OF-THE-LOG ARGUMENTS`` in the background."""
        return self._begin([sys.executable, "-m", module, self.cluster.bootstrap, *arguments])

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        options = ["-b", self.cluster.bootstrap, "--data", str(self.data)]
        return [sys.executable, "-m", "headrace.cli", *arguments, *options]

    def _begin(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603


def _is_done(cluster: Cluster, run: Run) -> bool:
    run.check_parts()
    for part in run.failed:
        assert part.error is not None
        raise part.error
    done = {runner.status.name: _has_read_all(cluster, runner) for runner in run.flows}
    return all(done.values()) and all(_has_caught_up(cluster, run, follower) for follower in run.followers)


def _has_read_all(cluster: Cluster, runner: FlowRunner) -> bool:
    state = runner.current
    if state is None:
        return False
    read_to = state.last.inputs if state.last else {}
    for source in state.generation.inputs:
        reached = {int(part): to for part, (_, to) in read_to.get(source.log, {}).items()}
        if source.kind == "events" and any(
            reached.get(part, 0) < end for part, end in cluster.ends(source.log).items()
        ):
            return False
    return True


def _has_caught_up(cluster: Cluster, run: Run, follower: Follower) -> bool:
    status, view = follower.status, follower.view
    if status.state != "following" or status.position is None:
        return False
    flow = run.app.writer_of(view.topic)
    if flow is None:
        return status.position.offsets == cluster.ends(view.topic.name)
    state = next(runner.current for runner in run.flows if runner.status.name == flow.name)
    if state is None or state.last is None:
        return False
    reached = status.position.generation, status.position.batch
    return reached == (state.generation.generation, state.last.batch)


def on_stage(play: Callable[[Stage], Any]) -> None:
    """Run a story in a temporary directory, and print its output."""
    from headrace.flow.spark.session import start, stop

    running: list[SparkSession] = []

    def spark() -> SparkSession:
        if not running:
            running.append(start(Settings(data=home / "session"), "examples", say=print))
        return running[0]

    with tempfile.TemporaryDirectory(prefix="headrace-example-") as name:
        home = Path(name)
        broker = BrokerChild("127.0.0.1:0", home / "log", home / "broker.log")
        try:
            play(Stage(broker.address, home, spark, lambda line: print(line, flush=True)))
        finally:
            for session in running:
                stop(session)
            broker.stop()
