"""Spark as the product starts it: quiet, ours to stop, and never left behind."""

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

from headrace.flow import java
from headrace.flow.jvm import Jvm, Launch, write_properties
from headrace.flow.start_errors import SparkNotStarted
from headrace.settings import Settings, SparkSettings
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


class Child:
    """``spark_child`` in a process group of its own, as a shell starts a command in."""

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

    def ask(self, what: str) -> Any:
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


def _answer_to_a_stranger(port: int) -> bytes:
    """To a request without a login, which is: length (8), kind (1), number (8), size of the body (4), body."""
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


def test_spark_starts_as_set_hears_no_ctrl_c_and_puts_nothing_on_the_terminal(
    child: Child, tmp_path: Path
) -> None:
    told = child.ask("start")
    assert told["odd"] == "a = b: #c\\d é"
    assert (told["partitions"], told["zone"]) == ("3", "UTC")
    assert (told["ui"], told["host"]) == (None, "127.0.0.1")
    assert b"Expected SaslMessage" in _answer_to_a_stranger(told["port"])
    # Classes come from the archive, if the set-up has made one.
    mapped = Path(f"/proc/{told['jvm']}/maps").read_text()
    assert (told["archive"] in mapped) is Path(told["archive"]).is_file()
    # Ctrl-C on a terminal goes to the whole group: Python hears it, and Spark still works.
    os.killpg(child.process.pid, signal.SIGINT)
    assert until(lambda: child.ask("heard"), "Ctrl-C") == ["SIGINT"]
    assert child.ask("sum") == 4950
    assert child.ask("ended") is None
    child.ask("stop")
    assert not is_running(told["jvm"])
    out, err = child.process.communicate(timeout=240)
    assert (child.process.returncode, out, err) == (0, "", "")
    # What it said is kept, what it spilled is not.
    assert sorted(path.name for path in (tmp_path / "spark").iterdir()) == ["jvm.out", "spark.log"]


def test_a_jvm_that_is_killed_is_told_of_and_started_anew_and_ends_when_python_is_killed(
    child: Child,
) -> None:
    first = child.ask("start")["jvm"]
    os.kill(first, signal.SIGKILL)
    ended = until(lambda: child.ask("ended"), "the end of the JVM")
    assert ended == {
        "message": "the JVM that Spark runs in ended by itself, by signal 9",
        "code": "HR-SPARK-ENDED",
    }
    child.ask("stop")
    second = child.ask("start")["jvm"]
    assert child.ask("sum") == 4950
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    until(lambda: not is_running(second), "the JVM's end")


def test_a_jvm_that_does_not_start_tells_what_it_said(tmp_path: Path) -> None:
    launch = Launch(java.require().path, tmp_path, (), "600m", ("-XX:NoSuchOption=1",))
    with pytest.raises(SparkNotStarted, match="ended before it was ready") as caught:
        Jvm(launch, {}, tmp_path, os.environ)
    assert str(tmp_path) in caught.value.hint
    assert "SparkSubmit" in caught.value.detail  # Nothing is in that folder to be started.


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
