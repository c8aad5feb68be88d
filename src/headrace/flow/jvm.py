"""The JVM that Spark runs in: a child process with a gateway for Python.

PySpark would start it through two shell scripts and a JVM that only puts the command line together, on the user's
terminal. Here it is started at once, and:

- What it prints goes to files: ``jvm.out`` has what the process itself says and begins anew with each start,
  ``spark.log`` what Spark logs, bounded. The end of both is shown when it fails.
- It is in a session of its own, so Ctrl-C and a closed terminal reach Python only, which stops it when it is time.
- It ends when its standard input does. So it also ends when Python is killed, by whatever signal.
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

from headrace.flow.start_errors import SparkEnded, SparkNotStarted
from headrace.private import private

__all__ = ["STOP_S_MAX", "Jvm", "Launch", "write_properties"]

START_S_MAX = 300.0
STOP_S_MAX = 30.0
_LOOK_S = 0.01
_TAIL_LINES = 12
_TAIL_BYTES = 64 * 1024
_OUT_OF_MEMORY = 3
"""The exit code that ``-XX:+ExitOnOutOfMemoryError`` gives."""
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
# What Spark reaches into; the list is that of its own launcher, without a module that only its linear algebra uses.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """All that makes the command line."""

    java: Path
    spark_home: Path
    jars: Sequence[Path]
    """On the class path before Spark's own."""
    memory: str
    options: Sequence[str]
    """For the JVM, beside those that Spark cannot do without."""

    def classpath(self) -> list[Path]:
        """Sorted, since an archive of classes is good for one order only."""
        extra = [Path(name) for name in os.environ.get("HADOOP_CONF_DIR", "").split(os.pathsep) if name]
        return [*extra, *self.jars, *sorted((self.spark_home / "jars").glob("*.jar"))]

    def command(self, logs: Path, properties: Path) -> list[str]:
        return [
            str(self.java),
            *("-cp", os.pathsep.join(map(str, self.classpath()))),
            f"-Xmx{self.memory}",
            # Spark's own parsers recurse deeply: the default stack is too small for a long regular expression.
            "-Xss4m",
            # A batch's plan becomes one method. Past 8,000 bytes of code the JVM would never compile it, and few fields
            # are enough for that: every row would be interpreted.
            "-XX:-DontCompileHugeMethods",
            # One that is out of memory answers, but does nothing any more. Better that it is seen to be gone.
            "-XX:+ExitOnOutOfMemoryError",
            f"-XX:ErrorFile={logs / 'jvm-crash-%p.log'}",
            # Counters for tools that watch JVMs, kept in a file of the system's folder; nobody watches this one.
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
            # Last, so that they count.
            *self.options,
            "org.apache.spark.deploy.SparkSubmit",
            *("--properties-file", str(properties), "--load-spark-defaults", "pyspark-shell"),
        ]


class Jvm:
    def __init__(
        self, launch: Launch, conf: Mapping[str, str], logs: Path, environment: Mapping[str, str]
    ) -> None:
        self._logs = logs
        # Only this user may read it: a configuration may hold passwords, which a command line would show to all.
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            properties, address = Path(folder) / "spark.properties", Path(folder) / "address"
            properties.write_text(write_properties(conf), encoding="utf-8")
            with open(logs / "jvm.out", "wb", opener=private) as out:
                self.process = subprocess.Popen(  # noqa: S603  the Java that was found, and our own command line
                    launch.command(logs, properties),
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)},
                    start_new_session=True,
                )
            try:
                self.port, self.secret = self._wait_for(address)
            except BaseException:
                # It has done nothing yet that would have to be ended well.
                self.process.kill()
                self.stop()
                raise

    def _wait_for(self, address: Path) -> tuple[int, str]:
        """Port and secret of the gateway, which it writes to a file: two lengths of four bytes, then text."""
        until = time.monotonic() + START_S_MAX
        while not address.is_file():
            if self.process.poll() is not None:
                raise SparkNotStarted(
                    f"the JVM for Spark ended before it was ready, with exit code {self.process.returncode}",
                    detail=self.tail(),
                    hint=f"all that it said is in {self._logs}; headrace doctor looks for what may be missing",
                )
            if time.monotonic() > until:
                raise SparkNotStarted(
                    f"the JVM for Spark was not ready within {START_S_MAX:.0f} s",
                    detail=self.tail(),
                    hint=f"all that it said is in {self._logs}",
                )
            time.sleep(_LOOK_S)
        told = address.read_bytes()
        port, length = struct.unpack(">ii", told[:8])
        return port, told[8 : 8 + length].decode("utf-8")

    def ended(self) -> SparkEnded | None:
        """Why it is not there any more; nothing while it is."""
        code = self.process.poll()
        if code is None:
            return None
        if code == _OUT_OF_MEMORY:
            return SparkEnded(
                "Spark ran out of memory, and its JVM ended",
                detail=self.tail(),
                hint="raise spark.driver_memory in headrace.toml, keep state in RocksDB (spark.state), or take "
                "smaller batches (flow.max_rows)",
            )
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return SparkEnded(
            f"the JVM that Spark runs in ended by itself, {how}",
            detail=self.tail(),
            hint=f"all that it said is in {self._logs}",
        )

    def tail(self) -> str:
        """The last lines of what Spark logged and of what the process printed."""
        lines = [line for name in ("spark.log", "jvm.out") for line in _last_lines(self._logs / name)]
        return "\n".join(lines)

    def stop(self, patience_s: float = STOP_S_MAX) -> None:
        """The end of its input tells it to end; it is killed when it takes too long over that."""
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
    """A file of Java properties, in which no character of a key or a value has a meaning of its own."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "".join(f"\\{letter}" if letter in " :=#!" else letter for letter in plain)
