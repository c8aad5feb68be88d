"""A Spark standalone cluster from the PySpark wheel: a master and workers, each in its own process."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from pathlib import Path

import psutil

from faults.servers.server import free_port, spawn
from faults.wait import until, unwatch, watch_process
from headrace.flow.spark.jars import pyspark_home
from tools.java import QUICK_START, java, java_home

__all__ = ["SparkCluster"]

_DEPLOY = "org.apache.spark.deploy"


class SparkCluster:
    """Each worker has one core, so every flow needs all workers in turn. The processes authenticate with the secret in
    ``secret_file``.
    """

    def __init__(self, home: Path, workers: int = 2) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.secret = secrets.token_hex(16)
        self.secret_file = home / "secret"
        self.secret_file.write_text(self.secret)
        self.properties = home / "cluster.properties"
        self.properties.write_text(f"spark.authenticate=true\nspark.authenticate.secret={self.secret}\n")
        self._port = free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        arguments = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(free_port()))
        self._processes.append(self._spawn("master.Master", "master", *arguments))
        until(lambda: "Starting Spark master" in self._log_text("master"), "the master starts", timeout_s=600)
        self.workers = [self._worker(number) for number in range(workers)]
        for number in range(workers):
            until(
                lambda number=number: "registered with master" in self._log_text(f"worker{number}"),  # type: ignore[misc]
                f"worker {number}",
                timeout_s=600,
            )

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and the workers. Executors are their children."""
        return [process.pid for process in (*self._processes, *self.workers)]

    def kill_worker(self, number: int) -> None:
        """Kill the worker and its children, as if its machine were lost."""
        worker = self.workers[number]
        unwatch(worker)
        children = psutil.Process(worker.pid).children(recursive=True)
        for pid in (worker.pid, *(child.pid for child in children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.poll() is None:
                self.kill_worker(number)
        for process in self._processes:
            unwatch(process)
            process.kill()
            process.wait()

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        arguments = ("--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", str(free_port()))
        size = ("--cores", "1", "--memory", "700m", "--work-dir", str(self.home / f"work{number}"))
        return self._spawn("worker.Worker", f"worker{number}", *arguments, *size, self.master)

    def _spawn(self, kind: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = pyspark_home()
        command: list[str | Path] = [
            java(),
            *QUICK_START,
            "-Xmx256m",
            "-cp",
            f"{home / 'jars'}/*",
            f"{_DEPLOY}.{kind}",
        ]
        command += ["--properties-file", str(self.properties), *arguments]
        environment = {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",  # As Spark's own scripts do.
        }
        log = self.home / f"{name}.log"
        process = spawn(command, log, environment)
        watch_process(process, f"Spark's {name}", log)
        return process

    def _log_text(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")
