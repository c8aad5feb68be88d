"""A Spark standalone cluster out of the PySpark wheel: a master and two workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from pathlib import Path

import psutil

from headrace.flow.jars import pyspark_home
from tests.support.server import free_port, spawn
from tests.support.waiting import until, unwatch, watch_process
from tools.java import QUICK_START, java, java_home

__all__ = ["SparkCluster"]

_DEPLOY = "org.apache.spark.deploy"


class SparkCluster:
    """Workers have a core each, so that every flow needs both of them in turn. Its processes authenticate by the secret
    in ``secret_file``.
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
        words = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(free_port()))
        self._processes.append(self._spawn("master.Master", "master", *words))
        until(lambda: "Starting Spark master" in self._said("master"), "the master", timeout_s=600)
        self.workers = [self._worker(number) for number in range(workers)]
        for number in range(workers):
            until(
                lambda number=number: "registered with master" in self._said(f"worker{number}"),  # type: ignore[misc]
                f"worker {number}",
                timeout_s=600,
            )

    @property
    def pids(self) -> list[int]:
        """Of the master and the workers; executors are their children."""
        return [process.pid for process in (*self._processes, *self.workers)]

    def kill_worker(self, number: int) -> None:
        """And what it has started, as when a machine is gone."""
        worker = self.workers[number]
        unwatch(worker)
        children = psutil.Process(worker.pid).children(recursive=True)
        for one in (worker.pid, *(child.pid for child in children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
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
        words = ("--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", str(free_port()))
        size = ("--cores", "1", "--memory", "700m", "--work-dir", str(self.home / f"work{number}"))
        return self._spawn("worker.Worker", f"worker{number}", *words, *size, self.master)

    def _spawn(self, kind: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        home = pyspark_home()
        command = [java(), *QUICK_START, "-Xmx256m", "-cp", f"{home / 'jars'}/*", f"{_DEPLOY}.{kind}"]
        command += ["--properties-file", str(self.properties), *words]
        environment = {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",  # As Spark's own scripts set it.
        }
        log = self.home / f"{name}.log"
        process = spawn(command, log, environment)
        watch_process(process, f"Spark's {name}", log)
        return process

    def _said(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")
