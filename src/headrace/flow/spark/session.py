"""Starts and stops Spark: one JVM and one session per process, for all flows of an app."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.files import make_private_dir
from headrace.flow.spark import jars, java
from headrace.flow.spark.class_archive import archive_options
from headrace.flow.spark.conf import LOCAL, spark_conf, write_pools
from headrace.flow.spark.errors import MissingExtra, SparkEnded, SparkNotStarted
from headrace.flow.spark.jars import Say
from headrace.flow.spark.jvm import STOP_S_MAX, Jvm, Launch
from headrace.processes import is_running
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ended", "launch_for", "spill_folder", "start", "stop"]

# Ten times Java's defaults, so that the second compiler skips code that runs only while Spark starts.
_DELAY_SECOND_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
_start_stop_lock = threading.Lock()
_running: dict[int, tuple[Jvm, Path]] = {}
"""The JVM and its spill directory, by the id of the session. Has at most one entry."""
_PREFIX = "tmp-"


def _quiet(line: str) -> None:
    """The default of ``say``: prints nothing."""


def start(settings: Settings, app_name: str, *, slots: int = 0, say: Say = _quiet) -> SparkSession:
    """Start a session in a new JVM. ``say`` reports slow steps, such as downloads of jars. ``slots`` is the number of
    task slots that a local master has in addition to its cores, for tasks that run continuously and mostly wait.
    """
    with _start_stop_lock:
        if _running:
            raise SparkNotStarted(
                "Spark already runs in this process",
                hint="stop that session first: a process can have only one Spark session at a time",
            )
        launch = launch_for(settings, say=say)
        logs = settings.spark_dir.absolute()
        make_private_dir(logs)
        spill = spill_folder(logs)
        write_pools(spill)
        conf = spark_conf(settings, app_name, launch.jars, spill, slots)
        launch = replace(
            launch, options=[*archive_options(launch), f"-Djava.io.tmpdir={spill}", *launch.options]
        )
        # Python workers must use this interpreter, with its packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        jvm = Jvm(launch, conf, logs, _environment(settings, launch))
        try:
            session = _connect_in_thread(jvm)
        except BaseException:
            jvm.stop()
            _reset_pyspark()
            raise
        _running[id(session)] = jvm, spill
        return session


def launch_for(settings: Settings, *, say: Say) -> Launch:
    """Return the command line of the JVM. Downloads missing jars."""
    runtime = java.require()
    return Launch(
        java=runtime.path,
        spark_home=jars.pyspark_home(),
        jars=jars.provide(runtime.path, folder=settings.spark.jars, say=say),
        memory=settings.spark.driver_memory,
        options=_java_options(settings),
    )


def stop(session: SparkSession, *, patience_s: float = STOP_S_MAX, clean: bool = True) -> None:
    """Stop the session and its JVM. The JVM may have ended already. With ``clean=False``, end the JVM without stopping
    the session first, which can take seconds. Nothing is lost: all that counts is in the log and in checkpoints.
    """
    with _start_stop_lock:
        if id(session) not in _running:
            return
        jvm, spill = _running.pop(id(session))
        gateway: Any = session.sparkContext._gateway
        # If the JVM has ended, py4j and PySpark would each log a warning.
        if clean:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                session.stop()
        with contextlib.suppress(Exception):
            gateway.shutdown()
        _reset_pyspark()
        jvm.stop(patience_s)
        shutil.rmtree(spill, ignore_errors=True)


def ended(session: SparkSession) -> SparkEnded | None:
    """Return the reason if the JVM ended unexpectedly; else None. Calls to an ended JVM raise connection errors."""
    running = _running.get(id(session))
    return None if running is None else running[0].ended()


def _java_options(settings: Settings) -> list[str]:
    """Select a garbage collector unless the user has selected one: the JVM does not start with two."""
    options = shlex.split(settings.spark.java_options)
    if any(re.fullmatch(r"-XX:\+Use\w+GC", option) for option in options):
        return [*_DELAY_SECOND_COMPILER, *options]
    # On two cores, the serial collector is as fast as the others and needs a third less memory.
    return [
        "-XX:+UseSerialGC" if settings.cores <= 2 else "-XX:+UseParallelGC",
        *_DELAY_SECOND_COMPILER,
        *options,
    ]


def _environment(settings: Settings, launch: Launch) -> dict[str, str]:
    environment = {**os.environ, "SPARK_HOME": str(launch.spark_home), "SPARK_CONNECT_MODE": "0"}
    if settings.is_local:
        # Without this, Spark resolves the host name and logs a warning about the result.
        environment["SPARK_LOCAL_IP"] = LOCAL
    return environment


def _connect_in_thread(jvm: Jvm) -> SparkSession:
    """In the main thread, PySpark would handle Ctrl-C itself: it would call the JVM in the middle of another call."""
    logging.getLogger().addFilter(_is_not_from_py4j)
    connected: Future[SparkSession] = Future()

    def connect() -> None:
        try:
            connected.set_result(_connect(jvm))
        except BaseException as error:
            connected.set_exception(error)

    threading.Thread(target=connect, name="connect to Spark", daemon=True).start()
    return connected.result()


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    """py4j logs each failed call with its traceback, and also raises the error."""
    return "py4j" not in Path(record.pathname).parts


def _connect(jvm: Jvm) -> SparkSession:
    with warnings.catch_warnings():
        # PySpark's imports cause deprecation warnings.
        warnings.simplefilter("ignore")
        try:
            from pyspark import SparkContext
            from pyspark.errors import PySparkException
            from pyspark.java_gateway import launch_gateway
            from pyspark.sql import SparkSession

            from headrace.flow.spark.java_names import remember_names
        except ImportError as error:
            raise MissingExtra(error.name or "pyspark") from error
        try:
            with _in_environment(
                {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
            ):
                gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
            gateway.proc = jvm.process
            remember_names(gateway)
            return SparkSession(SparkContext(gateway=gateway))
        except (PySparkException, OSError, _py4j_error()) as error:
            raise jvm.ended() or SparkNotStarted(
                "Spark's session did not start",
                detail=f"{_first_line(error)}\n{jvm.tail()}",
                hint="check [spark] in headrace.toml; headrace config shows all settings and their origins",
            ) from error


def _py4j_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    error: type[Exception] = Py4JError
    return error


def _first_line(error: BaseException) -> str:
    java_exception = getattr(error, "java_exception", None)
    text = str(java_exception.toString()) if java_exception is not None else str(error)
    return text.strip().partition("\n")[0]


def _reset_pyspark() -> None:
    """Clear PySpark's global state. PySpark would reuse the gateway of a stopped session, which ended with its JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


@contextlib.contextmanager
def _in_environment(values: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


def spill_folder(parent: Path) -> Path:
    """Create the directory for the JVM's temporary files: shuffles and unpacked native libraries. Each process has its
    own directory. A killed process leaves its directory behind; the next start removes such directories.
    """
    for leftover in parent.glob(f"{_PREFIX}*"):
        pid = leftover.name.removeprefix(_PREFIX)
        if not pid.isdigit() or not is_running(int(pid)):
            shutil.rmtree(leftover, ignore_errors=True)
    folder = parent / f"{_PREFIX}{os.getpid()}"
    make_private_dir(folder)
    return folder
