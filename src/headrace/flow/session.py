"""Spark, started and stopped: one JVM and one session in a process, for all flows of an app."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.flow import jars, java
from headrace.flow.archive import use_option
from headrace.flow.jars import Say
from headrace.flow.jvm import STOP_S_MAX, Jvm, Launch
from headrace.flow.spark_conf import LOCAL, spark_conf, write_pools
from headrace.flow.spill import spill_folder
from headrace.flow.start_errors import ExtraMissing, SparkEnded, SparkNotStarted
from headrace.private import make_private_dir
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ended", "launch_for", "start", "stop"]

# Ten times what Java has: it compiles less of what runs only at the start, and all the same what runs all the time.
_SECOND_COMPILER_LATER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
_one_at_a_time = threading.Lock()
_running: dict[int, tuple[Jvm, Path]] = {}
"""The JVM and the folder that it spills to, by the identity of its session; one at most."""


def _quiet(line: str) -> None:
    """For whoever wants to hear nothing."""


def start(settings: Settings, app_name: str, *, slots: int = 0, say: Say = _quiet) -> SparkSession:
    """A session in a JVM of its own. ``say`` is told of what takes long: jars that are fetched, once. ``slots`` are for
    tasks that run all the time and mostly wait; a local master has them beside its cores.
    """
    with _one_at_a_time, _interrupts_as_they_were():
        if _running:
            raise SparkNotStarted(
                "Spark runs already in this process", hint="stop it first; a process can have one only"
            )
        launch = launch_for(settings, say=say)
        logs = settings.spark_dir.absolute()
        make_private_dir(logs)
        spill = spill_folder(logs)
        write_pools(spill)
        conf = spark_conf(settings, app_name, launch.jars, spill, slots)
        launch = replace(launch, options=[*use_option(launch), f"-Djava.io.tmpdir={spill}", *launch.options])
        # Workers for functions in Python must be of this Python, with its packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        jvm = Jvm(launch, conf, logs, _environment(settings, launch))
        try:
            session = _connect(jvm)
        except BaseException:
            _forget()
            jvm.stop()
            raise
        _running[id(session)] = jvm, spill
        return session


def launch_for(settings: Settings, *, say: Say) -> Launch:
    """The command line, once everything is there that it names."""
    runtime = java.require()
    return Launch(
        java=runtime.path,
        spark_home=jars.pyspark_home(),
        jars=jars.provide(runtime.path, folder=settings.spark.jars, say=say),
        memory=settings.spark.driver_memory,
        options=_java_options(settings),
    )


def stop(session: SparkSession, *, patience_s: float = STOP_S_MAX) -> None:
    """Stop the session and end its JVM; also when that is gone already."""
    with _one_at_a_time:
        if id(session) not in _running:
            return
        jvm, spill = _running.pop(id(session))
        gateway: Any = session.sparkContext._gateway
        # Of a JVM that is gone, py4j and PySpark would each say so in their own way.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.stop()
        with contextlib.suppress(Exception):
            gateway.shutdown()
        _forget()
        jvm.stop(patience_s)
        shutil.rmtree(spill, ignore_errors=True)


def ended(session: SparkSession) -> SparkEnded | None:
    """The reason, if the JVM ended by itself; then every call to Spark fails with an error of the connection."""
    running = _running.get(id(session))
    return None if running is None else running[0].ended()


def _java_options(settings: Settings) -> list[str]:
    """With a collector of our choice, unless there is one already: two are refused by the JVM."""
    options = shlex.split(settings.spark.java_options)
    if any(re.fullmatch(r"-XX:\+Use\w+GC", option) for option in options):
        return [*_SECOND_COMPILER_LATER, *options]
    # On two cores the serial collector is as fast as the others, and takes a third less memory.
    return [
        "-XX:+UseSerialGC" if settings.cores <= 2 else "-XX:+UseParallelGC",
        *_SECOND_COMPILER_LATER,
        *options,
    ]


def _environment(settings: Settings, launch: Launch) -> dict[str, str]:
    environment = {**os.environ, "SPARK_HOME": str(launch.spark_home), "SPARK_CONNECT_MODE": "0"}
    if settings.is_local:
        # Otherwise Spark looks for an address by the machine's name, and warns of what it finds.
        environment["SPARK_LOCAL_IP"] = LOCAL
    return environment


def _connect(jvm: Jvm) -> SparkSession:
    with warnings.catch_warnings():
        # PySpark's own imports warn of what Python has deprecated.
        warnings.simplefilter("ignore")
        try:
            from pyspark import SparkContext
            from pyspark.errors import PySparkException
            from pyspark.java_gateway import launch_gateway
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise ExtraMissing(error.name or "pyspark") from error
        try:
            with _in_environment(
                {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
            ):
                gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
            gateway.proc = jvm.process
            return SparkSession(SparkContext(gateway=gateway))
        except (PySparkException, OSError, _py4j_error()) as error:
            raise jvm.ended() or SparkNotStarted(
                "Spark's session did not start",
                detail=f"{_first_line(error)}\n{jvm.tail()}",
                hint="look at [spark] in headrace.toml first: headrace config shows what is set, and from where",
            ) from error


def _py4j_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    error: type[Exception] = Py4JError
    return error


def _first_line(error: BaseException) -> str:
    java_side = getattr(error, "java_exception", None)
    text = str(java_side.toString()) if java_side is not None else str(error)
    return text.strip().partition("\n")[0]


def _forget() -> None:
    """PySpark keeps the gateway of a stopped session for the next one; ours ends with its JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _interrupts_as_they_were() -> Iterator[None]:
    """PySpark takes over Ctrl-C when it starts in the main thread. What Ctrl-C means is the command's to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _in_environment(values: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
