"""The JVM in which Spark runs: a child process with a gateway for Python.

PySpark would start the JVM on the user's terminal, through two shell scripts and another JVM that builds the command
line. This module starts it directly:

- The output is written to files. ``jvm.out`` has the output of the process and is truncated at each start.
  ``spark.log`` has Spark's log and a size limit. Error messages show the end of both.
- The JVM is in a separate process session, so Ctrl-C and a closed terminal reach only Python, which stops the JVM.
- The JVM ends when its standard input is closed. So it also ends if Python is killed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.files import private
from headrace.flow.spark.errors import SparkEnded, SparkNotStarted

__all__ = ["STOP_S_MAX", "Jvm", "Launch", "write_properties"]

START_S_MAX = 300.0
STOP_S_MAX = 30.0
_POLL_S = 0.01
_TAIL_LINES = 12
_TAIL_BYTES = 64 * 1024
_OUT_OF_MEMORY = 3
"""The exit code of ``-XX:+ExitOnOutOfMemoryError``."""
_MALLOC = {"MALLOC_ARENA_MAX": "4"}
"""By default, glibc has up to eight arenas per core for memory outside the heap. Spark has hundreds of threads, so the
arenas of a driver with two cores grew to 110 MB, and continued to grow for hours.
"""
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
# Java packages that Spark accesses: the list of Spark's launcher, without a package that only linear algebra uses.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """The parts of the JVM's command line."""

    java: Path
    spark_home: Path
    jars: Sequence[Path]
    """Jars on the class path before Spark's own jars."""
    memory: str
    options: Sequence[str]
    """JVM options in addition to those that Spark requires."""

    def classpath(self) -> list[Path]:
        """Return the class path. Spark's jars are sorted, because a class archive is valid only for one order."""
        extra = [Path(name) for name in os.environ.get("HADOOP_CONF_DIR", "").split(os.pathsep) if name]
        return [*extra, *self.jars, *sorted((self.spark_home / "jars").glob("*.jar"))]

    def command(self, logs: Path, properties: Path) -> list[str]:
        return [
            str(self.java),
            *("-cp", os.pathsep.join(map(str, self.classpath()))),
            f"-Xmx{self.memory}",
            # Spark's parsers recurse deeply. The default stack is too small for a long regular expression.
            "-Xss4m",
            # Spark generates one method for the plan of a batch. By default, the JVM does not compile methods
            # of more than 8,000 bytes, and a plan with a few fields exceeds that. The JVM would then
            # interpret the method for every row.
            "-XX:-DontCompileHugeMethods",
            # A JVM that is out of memory still responds but makes no progress. Exiting makes the error visible.
            "-XX:+ExitOnOutOfMemoryError",
            f"-XX:ErrorFile={logs / 'jvm-crash-%p.log'}",
            # Do not write counters for monitoring tools to a file in the system's temporary directory.
            "-XX:-UsePerfData",
            "-XX:+IgnoreUnrecognizedVMOptions",
            *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
            "--sun-misc-unsafe-memory-access=allow",
            "--enable-native-access=ALL-UNNAMED",
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Djava.net.preferIPv6Addresses=false",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}",
            f"-Dheadrace.logs={logs}",
            # The last options override earlier ones.
            *self.options,
            "org.apache.spark.deploy.SparkSubmit",
            *("--properties-file", str(properties), "--load-spark-defaults", "pyspark-shell"),
        ]


class Jvm:
    def __init__(
        self, launch: Launch, conf: Mapping[str, str], logs: Path, environment: Mapping[str, str]
    ) -> None:
        self._logs = logs
        # Only this user can read the directory. The configuration can have passwords, so it is not passed on the
        # command line, which every user can see.
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            properties, address = Path(folder) / "spark.properties", Path(folder) / "address"
            properties.write_text(write_properties(conf), encoding="utf-8")
            with open(logs / "jvm.out", "wb", opener=private) as out:
                self.process = subprocess.Popen(  # noqa: S603  the Java that was found, and our own command line
                    launch.command(logs, properties),
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**_MALLOC, **environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)},
                    start_new_session=True,
                )
            try:
                self.port, self.secret = self._wait_for(address)
            except BaseException:
                # A kill is safe: the JVM has done no work yet.
                self.process.kill()
                self.stop()
                raise

    def _wait_for(self, address: Path) -> tuple[int, str]:
        """Return port and secret of the gateway. The JVM writes them to a file: the port and the length of the secret,
        four bytes each, then the secret as text.
        """
        deadline_s = time.monotonic() + START_S_MAX
        while not address.is_file():
            if self.process.poll() is not None:
                raise SparkNotStarted(
                    f"the JVM for Spark ended before it was ready, with exit code {self.process.returncode}",
                    detail=self.tail(),
                    hint=f"read its output in {self._logs}; headrace doctor checks the requirements",
                )
            if time.monotonic() > deadline_s:
                raise SparkNotStarted(
                    f"the JVM for Spark was not ready within {START_S_MAX:.0f} s",
                    detail=self.tail(),
                    hint=f"read its output in {self._logs}",
                )
            time.sleep(_POLL_S)
        raw = address.read_bytes()
        port, length = struct.unpack(">ii", raw[:8])
        return port, raw[8 : 8 + length].decode("utf-8")

    def ended(self) -> SparkEnded | None:
        """Return the reason if the JVM ended; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        if code == _OUT_OF_MEMORY:
            return SparkEnded(
                "Spark ran out of memory, and its JVM ended",
                detail=self.tail(),
                hint="increase spark.driver_memory in headrace.toml, store state in RocksDB (spark.state), or set "
                "smaller batches (flow.max_rows)",
            )
        manner = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return SparkEnded(
            f"the JVM in which Spark runs ended unexpectedly, {manner}",
            detail=self.tail(),
            hint=f"read its output in {self._logs}",
        )

    def tail(self) -> str:
        """Return the last lines of Spark's log and of the process output."""
        lines = [line for name in ("spark.log", "jvm.out") for line in _last_lines(self._logs / name)]
        return "\n".join(lines)

    def stop(self, patience_s: float = STOP_S_MAX) -> None:
        """End the JVM by closing its standard input; kill it after ``patience_s`` seconds."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _last_lines(path: Path) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-_TAIL_LINES:]


def write_properties(conf: Mapping[str, str]) -> str:
    """Return the content of a Java properties file, with all special characters escaped."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "".join(f"\\{letter}" if letter in " :=#!" else letter for letter in plain)
