"""A measured log server. It is started as a user would start it, and loaded by a client in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from faults.servers import apache_kafka
from faults.servers.apache_kafka import start_kafka
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server

__all__ = ["Launch", "MeasuredServer", "headrace", "kafka"]

# The options that Apache Kafka's own start script sets.
_KAFKA_JVM = [
    "-Xmx1g",
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOAD_S_MAX = 600

Launch = Callable[[Path], Server]
Figures = dict[str, float]


def headrace(durability: str) -> Launch:
    return lambda home: start_headrace(home, ["--durability", durability])


def kafka(settings: Mapping[str, str]) -> Launch:
    apache_kafka.JVM = _KAFKA_JVM
    return lambda home: start_kafka(home, settings)


class MeasuredServer:
    """One running server with its own data directory, which is removed at the end."""

    def __init__(self, name: str, launch: Launch) -> None:
        self.name = name
        self._launch = launch
        self._home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        self._topics = 0
        self._start()

    def _start(self) -> None:
        self.server = self._launch(self._home)
        self.start_ms = self._age_ms()

    def restart(self) -> None:
        self.server.stop()
        # The first line names the port, so remove the lines of the previous start.
        self.server.log.unlink()
        self._start()

    def stop(self) -> None:
        try:
            self.server.stop()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    def _admin(self) -> AdminClient:
        """Return a new admin client each time. An open one polls its server, which might be measured or stopped."""
        return AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})

    def topic(self, partitions: int = 1) -> str:
        """Create a topic, and return its name."""
        self._topics += 1
        name = f"bench-{self._topics}"
        admin = self._admin()
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(120)
        return name

    def drop(self, topic: str) -> None:
        """Delete the topic to free its disk space, so that its writes do not slow down the next measurement."""
        admin = self._admin()
        for future in admin.delete_topics([topic]).values():
            future.result(120)

    def load(self, work: str, topic: str, **options: int | str) -> Figures:
        """Return the figures of a client, and the CPU seconds that the server used meanwhile."""
        arguments = [f"{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "bench.log.load", work, self.server.bootstrap, topic, *arguments]
        before = self.cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LOAD_S_MAX)
        if done.returncode:
            raise SystemExit(f"{work} against {self.name} failed:\n{done.stdout}{done.stderr}")
        return {**json.loads(done.stdout), "cpu_s": self.cpu_s() - before}

    def cpu_s(self) -> float:
        fields = self._stat()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def _age_ms(self) -> float:
        """Milliseconds since the process began. Earlier work, such as formatting Kafka's directory, does not count."""
        began_s = int(self._stat()[19]) / _TICKS_PER_S
        return (time.clock_gettime(time.CLOCK_BOOTTIME) - began_s) * 1000

    def _stat(self) -> list[str]:
        return Path(f"/proc/{self.server.process.pid}/stat").read_text().rpartition(")")[2].split()
