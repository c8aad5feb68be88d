"""Writes ``data.tar.xz``: the data directory of ``bikes``, as the Headrace on Python's path writes it.

    PYTHONPATH=EARLIER/src:. unshare --uts python -m tests.flow.upgrade.write_data COMMIT

``COMMIT`` is the commit of EARLIER, a clone with the earlier state. The script uses only commands and client code that
the earlier state has too. It sets the name of the host to ``host``, because progress records contain it: so run it as
root in a namespace of its own, with ``unshare --uts``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headrace.client.cluster import Cluster
from tests.flow.upgrade import bikes

FILE = Path(__file__).with_name("data.tar.xz")
_APP = "tests.flow.upgrade.bikes:app"
_WAIT_S = 240.0
_SETTINGS = {
    "HEADRACE_SPARK__MASTER": "local[2]",
    "HEADRACE_SPARK__DRIVER_MEMORY": "768m",
    "HEADRACE_LOG__LISTEN": "127.0.0.1:0",
}
_LEFT_OUT = ("spark", "broker.log", "access.log")


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *map(str, words)]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _WAIT_S
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {_WAIT_S:.0f} s")
        time.sleep(0.2)
    return result


def query(data: Path, view: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        command("query", _APP, view, "--data", data, "--json"), capture_output=True, text=True, check=False
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


class Run:
    """``headrace run``, with the options."""

    def __init__(self, data: Path, work: Path, *options: str) -> None:
        self._output = work / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command("run", _APP, "--data", data, "--serve", "off", *options),
                stdout=output,
                stderr=output,
                env={**os.environ, **_SETTINGS},
            )
        self.cluster = Cluster(until(self._address, "the log"))

    def _address(self) -> str:
        text = self._output.read_text()
        if self.process.poll() is not None:
            raise SystemExit(text)
        found = re.search(r"log at (\S+),", text)
        return found[1] if found else ""

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(120) not in (0, 130):
            raise SystemExit(self._output.read_text())


def write(cluster: Cluster, topic: Any, rows: Sequence[Any]) -> None:
    producer = cluster.producer({"linger.ms": 0})
    for row in rows:
        key, value = (None, row) if isinstance(row, bytes) else topic.encode(row)
        producer.produce(topic.name, key=key, value=value)
    if producer.flush(30):
        raise SystemExit("the broker does not respond")


def main(commit: str) -> None:
    subprocess.run(["hostname", "host"], check=True)
    with tempfile.TemporaryDirectory(prefix="headrace-", dir="/tmp") as folder:
        work = Path(folder)
        data, backup = work / "data", work / "backup"
        backup.mkdir()
        run = Run(data, work, "--backup", str(backup))
        write(run.cluster, bikes.stations, bikes.STATIONS)
        until(lambda: len(query(data, "stations")) == len(bikes.STATIONS), "the stations")
        read = 0
        for batch in bikes.BATCHES:
            write(run.cluster, bikes.rides, batch)
            read += len(batch)
            until(lambda read=read: _rides_read(run.cluster) == read, f"{read} rides")  # type: ignore[misc]
        time.sleep(5)
        run.stop()
        rebuild = command("flow", "rebuild", _APP, "sum_per_minute", "--yes", "--data", data)
        # The second generation of a flow writes to another topic than the first.
        broker = subprocess.Popen(
            command("broker", "--data", data / "log", "--listen", "127.0.0.1:0"), stdout=subprocess.PIPE
        )
        assert broker.stdout is not None
        address = broker.stdout.readline().decode().partition(" ready on ")[2].split()[0]
        subprocess.run([*rebuild, "-b", address], check=True, env={**os.environ, **_SETTINGS})
        broker.send_signal(signal.SIGTERM)
        broker.wait(60)
        run = Run(data, work)
        until(lambda: len(query(data, "per-minute")) > 0, "the view of the second generation")
        time.sleep(10)
        run.stop()
        token = command("token", "create", "reader", "--scope", "read:view:*", "--data", data)
        text = subprocess.run(token, check=True, capture_output=True, text=True).stdout.strip()
        rows = {view.name: query(data, view.name) for view in bikes.app.views}
        about = {"version": version("headrace"), "commit": commit, "token": text, "rows": rows}
        (data / "about.json").write_text(json.dumps(about, indent=1))
        for name in _LEFT_OUT:
            path = data / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        with tarfile.open(FILE, "w:xz") as archive:
            archive.add(data, "data", filter=_without_owner)
            archive.add(backup, "backup", filter=_without_owner)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")


def _rides_read(cluster: Cluster) -> int:
    """Return how many rides the committed batches have read."""
    from headrace.client.progress import current

    progress = current(cluster, bikes.app.flows[0].progress_topic)
    if progress is None or progress.last is None:
        return 0
    return sum(end for _, end in progress.last.inputs.get("rides", {}).values())


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


if __name__ == "__main__":
    main(sys.argv[1])
