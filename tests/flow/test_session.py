"""Spark as Headrace starts it: without output, stoppable, and never left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.wait import until
from headrace.flow.spark import java
from headrace.flow.spark.errors import SparkNotStarted
from headrace.flow.spark.jvm import Jvm, Launch, write_properties
from headrace.settings import Settings, SparkSettings

ROOT = Path(__file__).parents[2]


class Child:
    """``spark_child`` in a process group of its own, as a shell starts a command."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.flow.spark_child", str(data)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def request(self, what: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(what, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return json.loads(line)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _response_without_login(port: int) -> bytes:
    """The response to a request without a login: length (8), kind (1), number (8), size of the body (4), body."""
    body = b"hello"
    head = struct.pack(">qbqi", 21 + len(body), 3, 1, len(body))
    with socket.create_connection(("127.0.0.1", port), 60) as wire:
        wire.sendall(head + body)
        (length,) = struct.unpack(">q", _exactly(wire, 8))
        return _exactly(wire, length - 8)


def _exactly(wire: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (some := wire.recv(count - len(found))):
        found += some
    return found


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    started = Child(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
    started.process.communicate()


def test_spark_starts_with_its_settings_ignores_ctrl_c_and_prints_nothing(
    child: Child, tmp_path: Path
) -> None:
    started = child.request("start")
    assert started["odd"] == "a = b: #c\\d é"
    assert (started["partitions"], started["zone"]) == ("3", "UTC")
    assert (started["ui"], started["host"]) == (None, "127.0.0.1")
    assert b"Expected SaslMessage" in _response_without_login(started["port"])
    # Classes come from the archive, if the set-up has created one.
    mapped = Path(f"/proc/{started['jvm']}/maps").read_text()
    assert (started["archive"] in mapped) is Path(started["archive"]).is_file()
    # Ctrl-C on a terminal signals the whole process group: Python receives it, and Spark still works.
    os.killpg(child.process.pid, signal.SIGINT)
    assert until(lambda: child.request("interrupts"), "Ctrl-C") == ["SIGINT"]
    assert child.request("sum") == 4950
    assert child.request("ended") is None
    child.request("stop")
    assert not is_running(started["jvm"])
    out, err = child.process.communicate(timeout=240)
    assert (child.process.returncode, out, err) == (0, "", "")
    # The JVM's output is kept; its temporary files are removed.
    assert sorted(path.name for path in (tmp_path / "spark").iterdir()) == ["jvm.out", "spark.log"]


def test_a_killed_jvm_is_reported_and_started_again_and_ends_with_python(
    child: Child,
) -> None:
    first = child.request("start")["jvm"]
    os.kill(first, signal.SIGKILL)
    ended = until(lambda: child.request("ended"), "the end of the JVM")
    assert ended == {
        "message": "the JVM in which Spark runs ended unexpectedly, by signal 9",
        "code": "HR-SPARK-ENDED",
    }
    child.request("stop")
    second = child.request("start")["jvm"]
    assert child.request("sum") == 4950
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    until(lambda: not is_running(second), "the JVM's end")


def test_the_error_for_a_jvm_that_does_not_start_has_its_output(tmp_path: Path) -> None:
    launch = Launch(java.require().path, tmp_path, (), "600m", ("-XX:NoSuchOption=1",))
    with pytest.raises(SparkNotStarted, match="ended before it was ready") as caught:
        Jvm(launch, {}, tmp_path, os.environ)
    assert str(tmp_path) in caught.value.hint
    assert "SparkSubmit" in caught.value.detail  # The folder has no Spark to start.


@pytest.mark.parametrize(
    ("master", "cores", "local"),
    [("local", 1, True), ("local[3]", 3, True), ("local[4,2]", 4, True), ("spark://a:7077", None, False)],
)
def test_the_cores_are_those_of_a_local_master(master: str, cores: int | None, local: bool) -> None:
    settings = Settings(spark=SparkSettings(master=master))
    here = len(os.sched_getaffinity(0))
    assert (settings.cores, settings.is_local) == (cores or here, local)
    assert Settings().cores == here


def test_a_property_keeps_every_character() -> None:
    text = write_properties({"a b": " =:#!\\\n\t", "plain": "x"})
    assert text == "a\\ b=\\ \\=\\:\\#\\!\\\\\\n\\t\nplain=x\n"
