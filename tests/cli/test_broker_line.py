"""``headrace broker``: the short way and the long way mean the same, and the short way stays small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import headrace.cli.broker
from headrace.cli.broker_line import BrokerLine, read_broker_line
from tests.cli.runner import Headrace

ANYWHERE = Headrace("127.0.0.1:1")

WORDS = st.sampled_from(
    [
        "--listen",
        "-l",
        "--data",
        "-d",
        "--advertise",
        "--durability",
        "--log-format",
        "--set",
        "--backup",
        "--backup-every-ms=7",
        "--anyone-may-read-and-write",
        "--auto-create-topics",
        "--no-auto-create-topics",
        "--listen=a:1",
        "--data=x=y",
        "--durability=os",
        "--set=k=v",
        "-lb:2",
        "-l=b:2",
        "--nope",
        "--help",
        "--",
        "-v",
        "a:1",
        "os",
        "synced",
        "json",
        "k=v",
        "k=",
        "=v",
        "k=v=w",
        "",
    ]
)


def the_long_way(words: list[str], monkeypatch: pytest.MonkeyPatch) -> BrokerLine | None:
    """What the full command makes of a line, without running it; None if it refuses."""
    seen: list[BrokerLine] = []

    def run(line: BrokerLine) -> int:
        seen.append(line)
        return 0

    monkeypatch.setattr(headrace.cli.broker, "run_broker_line", run)
    try:
        headrace.cli.broker.command().main(list(words), prog_name="headrace broker")
    except SystemExit:
        pass
    except typer.Exit:
        pass
    return seen[0] if seen else None


@given(st.lists(WORDS, max_size=7))
def test_a_line_that_is_read_by_hand_means_what_the_full_command_makes_of_it(words: list[str]) -> None:
    line = read_broker_line(words)
    if line is not None:
        with pytest.MonkeyPatch.context() as patch:
            assert the_long_way(words, patch) == line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], BrokerLine()),
        (
            ["--listen", "127.0.0.1:0", "-d", "x", "--set", "a=b", "--set", "c=d=e", "--durability=os"],
            BrokerLine(
                listen="127.0.0.1:0", data=Path("x"), settings={"a": "b", "c": "d=e"}, durability="os"
            ),
        ),
        (
            ["--no-auto-create-topics", "--anyone-may-read-and-write", "--log-format", "json"],
            BrokerLine(auto_create_topics=False, open_to_anyone=True, log_format="json"),
        ),
    ],
)
def test_ordinary_lines_are_read_by_hand(words: list[str], line: BrokerLine) -> None:
    assert read_broker_line(words) == line


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--data"], ["--durability", "none"], ["--set", "novalue"], ["extra"], ["--datum", "x"]],
)
def test_lines_that_are_not_in_order_go_the_long_way(words: list[str]) -> None:
    assert read_broker_line(words) is None


STAND_IN = """
import sys, types
def run_broker(**settings):
    print(*sorted(sys.modules))
    return 0
module = types.ModuleType("headrace.broker.main")
module.run_broker = run_broker
sys.modules["headrace.broker.main"] = module
from headrace.cli import main
sys.argv = ["headrace", "broker", "--data", "x", "--set", "num.partitions=3"]
sys.exit(main())
"""


def test_the_way_to_the_broker_loads_no_command_line_library_and_no_client() -> None:
    """The broker's memory is counted; a stand-in for it says what has been loaded when its turn comes."""
    done = subprocess.run([sys.executable, "-c", STAND_IN], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "headrace.cli.broker_line" in loaded
    assert not loaded & {"typer", "rich", "pydantic", "confluent_kafka", "argparse"}


def test_a_broker_that_has_used_a_bucket_ends_without_waiting_for_it(tmp_path: Path) -> None:
    """Threads of a bucket that hangs would be waited for when the interpreter is taken apart."""
    script = f"""
import asyncio, atexit, sys, pyarrow.fs, pyarrow._s3fs
import headrace.broker.main
async def serve(*ignored): pass
headrace.broker.main._serve = serve
atexit.register(print, "taken apart")
sys.argv = ["headrace", "broker", "--data", {str(tmp_path / "d")!r}]
from headrace.cli import main
print("stopped")
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


def test_listening_beyond_this_machine_needs_the_flag_that_says_what_it_means(tmp_path: Path) -> None:
    refused = ANYWHERE.call("broker", "--listen", "0.0.0.0:0", "--data", str(tmp_path / "d"))
    assert refused.code == 2
    assert "--anyone-may-read-and-write" in refused.err
    assert refused.out == ""


def test_a_setting_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    refused = ANYWHERE.call(
        "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--set", "no.such=1"
    )
    assert (refused.code, "no.such" in refused.err) == (2, True)


def test_a_line_that_makes_no_sense_is_explained_like_any_other(tmp_path: Path) -> None:
    refused = ANYWHERE.call("broker", "--durability", "none")
    assert refused.code == 2
    assert "'none' is not one of synced, os" in refused.err
