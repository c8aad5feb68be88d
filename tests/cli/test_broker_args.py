"""``headrace broker``: the small parser accepts the same arguments as Typer's, and loads few modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import headrace.cli.broker
from headrace.cli.broker_args import BrokerArgs, parse_broker_args, run_broker_args
from tests.cli.runner import Headrace

WITHOUT_BROKER = Headrace("127.0.0.1:1")

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


def parse_with_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> BrokerArgs | None:
    """Parse the arguments with Typer, without running the broker. Return None if Typer rejects them."""
    parsed: list[BrokerArgs] = []

    def run(args: BrokerArgs) -> int:
        parsed.append(args)
        return 0

    monkeypatch.setattr(headrace.cli.broker, "run_broker_args", run)
    try:
        headrace.cli.broker.command().main(list(words), prog_name="headrace broker")
    except SystemExit:
        pass
    except typer.Exit:
        pass
    return parsed[0] if parsed else None


@given(st.lists(WORDS, max_size=7))
def test_broker_args_parse_like_the_full_command(words: list[str]) -> None:
    args = parse_broker_args(words)
    if args is not None:
        with pytest.MonkeyPatch.context() as patch:
            assert parse_with_typer(words, patch) == args


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ([], BrokerArgs()),
        (
            ["--listen", "127.0.0.1:0", "-d", "x", "--set", "a=b", "--set", "c=d=e", "--durability=os"],
            BrokerArgs(
                listen="127.0.0.1:0", data=Path("x"), settings={"a": "b", "c": "d=e"}, durability="os"
            ),
        ),
        (
            ["--no-auto-create-topics", "--anyone-may-read-and-write", "--log-format", "json"],
            BrokerArgs(auto_create_topics=False, open_to_anyone=True, log_format="json"),
        ),
    ],
)
def test_valid_broker_args_are_parsed_without_typer(words: list[str], args: BrokerArgs) -> None:
    assert parse_broker_args(words) == args


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--data"], ["--durability", "none"], ["--set", "novalue"], ["extra"], ["--datum", "x"]],
)
def test_invalid_broker_args_go_through_the_full_command(words: list[str]) -> None:
    assert parse_broker_args(words) is None


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


def test_the_broker_starts_without_command_line_library_and_client() -> None:
    """These modules would use memory. A stub of the broker prints the modules that are loaded when it starts."""
    done = subprocess.run([sys.executable, "-c", STAND_IN], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "headrace.cli.broker_args" in loaded
    assert not loaded & {"typer", "rich", "pydantic", "confluent_kafka", "argparse"}


@pytest.mark.parametrize(
    ("words", "environment", "address"),
    [
        ([], {}, "127.0.0.1:9092"),
        ([], {"HEADRACE_LOG__LISTEN": "127.0.0.1:7"}, "127.0.0.1:7"),
        (["--listen", "127.0.0.1:8"], {"HEADRACE_LOG__LISTEN": "127.0.0.1:7"}, "127.0.0.1:8"),
    ],
)
def test_the_broker_listens_at_the_address_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    environment: dict[str, str],
    address: str,
) -> None:
    listening: list[str] = []
    monkeypatch.setattr(
        "headrace.broker.main.run_broker", lambda **given: listening.append(given["listen"]) or 0
    )
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = parse_broker_args(words)
    assert args is not None
    assert run_broker_args(args) == 0
    (tmp_path / "headrace.toml").write_text('log.listen = "127.0.0.1:6"\n')
    assert run_broker_args(args) == 0
    assert listening == [address, "127.0.0.1:6" if address == "127.0.0.1:9092" else address]


def test_a_broker_that_has_used_a_bucket_ends_without_waiting_for_it(tmp_path: Path) -> None:
    """At its normal exit the interpreter would wait for threads that read from a hanging bucket."""
    script = f"""
import asyncio, atexit, sys, pyarrow.fs, pyarrow._s3fs
import headrace.broker.main
async def serve(*ignored): pass
headrace.broker.main._serve = serve
atexit.register(print, "exit handlers ran")
sys.argv = ["headrace", "broker", "--data", {str(tmp_path / "d")!r}]
from headrace.cli import main
print("stopped")
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")


def test_listening_beyond_this_machine_needs_the_explicit_flag(tmp_path: Path) -> None:
    rejected = WITHOUT_BROKER.call("broker", "--listen", "0.0.0.0:0", "--data", str(tmp_path / "d"))
    assert rejected.code == 2
    assert "--anyone-may-read-and-write" in rejected.err
    assert rejected.out == ""


def test_an_unknown_setting_is_rejected(tmp_path: Path) -> None:
    rejected = WITHOUT_BROKER.call(
        "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--set", "no.such=1"
    )
    assert (rejected.code, "no.such" in rejected.err) == (2, True)


def test_invalid_broker_args_get_the_usual_error_message(tmp_path: Path) -> None:
    rejected = WITHOUT_BROKER.call("broker", "--durability", "none")
    assert rejected.code == 2
    assert "'none' is not one of synced, os" in rejected.err
