"""What an example is played on: a log, a folder, Spark from when it is first asked for, and lines for its reader.

``python -m examples.tills.story`` starts all of it for itself, in a folder that goes with it. The tests hand over a log
and a Spark that run already, and hold the lines against the page of the example.
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
from headrace.client.declaring import ensure_declared
from headrace.client.progress_log import current
from headrace.client.reading import read
from headrace.model.topic import Topic
from headrace.model.view import View
from headrace.runtime.embedded import BrokerChild
from headrace.runtime.run import Run
from headrace.settings import AlertSettings, LogSettings, Settings
from headrace.views.opening import open_reader

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import SparkSession

    from headrace.flow.runner import FlowRunner
    from headrace.views.follower import Follower

__all__ = ["ROOT", "Stage", "on_stage"]

ROOT = Path(__file__).parents[1]
_PATIENCE_S = 280.0
_LOOK_S = 0.1


class Stage:
    """``spark`` is called when the first flow runs."""

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
        """Topics that are written from outside, which ``headrace run`` would make."""
        for topic in app.topics:
            if app.writer_of(topic) is None:
                ensure_declared(self.cluster, topic, topic.name, 1)

    def write(self, topic: Topic, events: list[Any]) -> None:
        """In the log when this returns; a tuple is a key and a value as they are."""
        producer = self.cluster.producer({"linger.ms": 5})
        for event in events:
            key, value = event if isinstance(event, tuple) else topic.encode(event)
            producer.produce(topic.name, value, key)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Message]:
        """What is committed in a topic of one partition, as any reader has it."""
        return list(read(self.cluster, topic, {0: (0, self.cluster.ends(topic)[0])}))

    @contextlib.contextmanager
    def running(self, app: App) -> Iterator[Run]:
        """All flows and views of the app, as ``headrace run`` has them, until the block ends."""
        spark = self.spark() if app.flows else None
        run = Run(app, self.settings, tell=lambda line: None, spark=spark)
        try:
            run.start()
            yield run
        finally:
            run.close()
        for part in run.failed:
            assert part.error is not None
            raise part.error

    def settle(self, run: Run) -> None:
        """Until all that was written is derived, and followed."""
        self.wait(lambda: _is_done(self.cluster, run), "all of it is derived and followed")

    def served(self, app: App, views: Sequence[View], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Until the stores of the views have all that is in the log, as whoever looks into them finds."""
        left = list(views)

        def done() -> bool:
            meanwhile()
            left[:] = [view for view in left if not self._serves(app, view)]
            return not left

        self.wait(done, "every store is as far as the log")

    def _serves(self, app: App, view: View) -> bool:
        reader = open_reader(view, app.name, self.data)
        if reader is None:
            return False
        with contextlib.closing(reader):
            parts = [one for one in reader.known() if one.view == view.name and one.part.value == "serving"]
        if not parts:
            return False
        flow = app.writer_of(view.topic)
        if flow is None:
            return parts[0].offsets == self.cluster.ends(view.topic.name)
        progress = current(self.cluster, flow.progress_topic)
        if progress is None or progress.last is None:
            return False
        newest = progress.generation.generation, progress.last.batch
        return (parts[0].generation, parts[0].batch) == newest

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    # Other processes

    def headrace(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command, from its start to its end."""
        return subprocess.run(  # noqa: S603  our own command
            self._command(words), cwd=ROOT, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on beside us: to be listened to, stopped and killed."""
        return self._begin(self._command(words))

    def start_module(self, module: str, *words: str) -> subprocess.Popen[str]:
        """``python -m module ADDRESS-OF-THE-LOG words``."""
        return self._begin([sys.executable, "-m", module, self.cluster.bootstrap, *words])

    def _command(self, words: tuple[str, ...]) -> list[str]:
        where = ["-b", self.cluster.bootstrap, "--data", str(self.data)]
        return [sys.executable, "-m", "headrace.cli", *words, *where]

    def _begin(self, command: list[str]) -> subprocess.Popen[str]:
        piped = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, stdout=piped, stderr=piped, text=True)  # noqa: S603


def _is_done(cluster: Cluster, run: Run) -> bool:
    run.check_parts()
    for part in run.failed:
        assert part.error is not None
        raise part.error
    done = {runner.status.name: _has_read_all(cluster, runner) for runner in run.flows}
    return all(done.values()) and all(_is_there(cluster, run, one) for one in run.followers)


def _has_read_all(cluster: Cluster, runner: FlowRunner) -> bool:
    opened = runner.current
    if opened is None:
        return False
    read_to = opened.last.inputs if opened.last else {}
    for one in opened.generation.inputs:
        reached = {int(part): to for part, (_, to) in read_to.get(one.log, {}).items()}
        if one.kind == "events" and any(
            reached.get(part, 0) < end for part, end in cluster.ends(one.log).items()
        ):
            return False
    return True


def _is_there(cluster: Cluster, run: Run, follower: Follower) -> bool:
    status, view = follower.status, follower.view
    if status.state != "following" or status.position is None:
        return False
    flow = run.app.writer_of(view.topic)
    if flow is None:
        return status.position.offsets == cluster.ends(view.topic.name)
    opened = next(one.current for one in run.flows if one.status.name == flow.name)
    if opened is None or opened.last is None:
        return False
    reached = status.position.generation, status.position.batch
    return reached == (opened.generation.generation, opened.last.batch)


def on_stage(play: Callable[[Stage], Any]) -> None:
    """Plays it in a folder that goes with it; what it says is printed."""
    from headrace.flow.session import start, stop

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
            for one in running:
                stop(one)
            broker.stop()
