"""Small modules of the command line."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.errors import BrokerUnreachable, UsageError
from headrace.cli.filters import compile_filters
from headrace.cli.interrupt import Interrupt
from headrace.cli.kafka import parse_partitions
from headrace.cli.output import columns, to_json
from headrace.cli.reach import check_reachable, parse_addresses
from headrace.cli.record import Record, as_json
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import build, verb

RECORD = Record(
    "orders", key=b"abc", value=b'{"error": 7}', headers=[("trace", b"7"), ("trace", b"8"), ("none", None)]
)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ('key="abc"', True),
        ('key = "ab"', False),
        ('key != "abc"', False),
        ('key startswith "ab"', True),
        ('key matches "^ab"', True),
        ('key matches "^b"', False),
        ('not key matches "^b"', True),
        ('value contains "error"', True),
        ('value contains "Error"', False),
        ('value matches "[0-9]}$"', True),
        ('topic in ("returns", "orders")', True),
        ("header.trace=8", True),
        ("header.trace=9", False),
        ("header.trace!=8", False),
        ('header.none = ""', False),
        ("header.none = null", True),
        ("header.other != 1", True),
        ('key = "x" or (header.trace = 7 and not value = null)', True),
    ],
)
def test_a_filter_tests_the_columns_of_a_record(text: str, passes: bool) -> None:
    assert compile_filters([text])(RECORD) is passes


def test_a_record_must_pass_every_filter() -> None:
    assert compile_filters(['key="abc"', 'value contains "error"'])(RECORD)
    assert not compile_filters(['key="abc"', 'value contains "nothing"'])(RECORD)


def test_a_null_key_equals_nothing_not_even_the_empty_text() -> None:
    assert not compile_filters(['key=""'])(Record("t"))
    assert compile_filters(['key=""'])(Record("t", key=b""))


@pytest.mark.parametrize(
    "text", ["", "key", "offset=1", 'key matches "("', "header=1", "__import__('os')", "key > 1", "key=abc"]
)
def test_an_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        compile_filters([text])


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_as_json_loses_no_byte(key: bytes, value: bytes) -> None:
    import base64

    document = json.loads(to_json(as_json(Record("t", key=key, value=value, headers=[("h", value)]))))

    def back(source: dict[str, str], name: str) -> bytes:
        encoded = source.get(f"{name}_base64")
        return source[name].encode() if encoded is None else base64.b64decode(encoded)

    assert (back(document, "key"), back(document, "value"), back(document["headers"][0], "value")) == (
        key,
        value,
        value,
    )


def test_a_tombstone_is_not_an_empty_value() -> None:
    assert as_json(Record("t", value=None))["value"] is None
    assert as_json(Record("t", value=b""))["value"] == ""
    assert as_json(Record("t", value=b"12345"), meta_only=True)["value_size"] == 5


def test_a_name_cannot_send_control_characters_to_the_terminal() -> None:
    heading, line = columns([{"topic": "a\x1b[31mb\nc", "lag": 3}])
    assert heading.split() == ["TOPIC", "LAG"]
    assert line.split() == [r"a\x1b[31mb\x0ac", "3"]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("[::1]:1", [("::1", 1)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
        ("SASL_SSL://a:1", [("a", 1)]),
    ],
)
def test_addresses_parse_as_in_librdkafka(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", "a:b", "a:99999", ":1", "a:1,,b:2"])
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_addresses(text)


def test_one_reachable_broker_is_enough_and_errors_name_each_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = server.getsockname()[1], other.getsockname()[1]
        other.close()
        check_reachable(f"127.0.0.1:{closed},127.0.0.1:{port}")
        with pytest.raises(BrokerUnreachable) as refused:
            check_reachable(f"127.0.0.1:{closed},no.such.host.invalid:1")
    assert f"127.0.0.1:{closed}: connection refused" in refused.value.detail
    assert "unknown host 'no.such.host.invalid'" in refused.value.detail


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_partitions(None) == []
    assert parse_partitions("0,2,5-7") == [0, 2, 5, 6, 7]
    for text in ("x", "1-", "-1", "1,,2", "0-999999999"):
        with pytest.raises(UsageError):
            parse_partitions(text)


def test_a_pair_splits_at_the_first_equals_sign() -> None:
    assert parse_pairs(["a=b=c", "d="], "-X") == {"a": "b=c", "d": ""}
    for text in ("a", "=b", ""):
        with pytest.raises(UsageError):
            parse_pairs([text], "-X")


@pytest.mark.parametrize(("words", "traced"), [([], False), (["-v"], True)])
def test_an_unexpected_error_is_one_line_unless_verbose(
    words: list[str], traced: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    @verb("fail", examples="")
    def fail(session: Session) -> None:
        """Fail."""
        raise ZeroDivisionError("by zero")

    with pytest.raises(SystemExit) as leaving:
        build(fail).main(words, prog_name="headrace fail")
    document = capfd.readouterr()
    assert (leaving.value.code, document.out) == (1, "")
    assert "unexpected error: ZeroDivisionError: by zero" in document.err
    assert ("Traceback" in document.err) is traced


def test_the_run_display_marks_at_least_once_flows_and_counts_skipped_repeats() -> None:
    from rich.console import Console

    from headrace.app import App
    from headrace.cli.run.display import _flow_line, _panel, _view_line
    from headrace.runtime.summary import FlowSummary, RunSummary, ViewSummary

    flows = [
        FlowSummary(name, "running", "", 1, 3, 0.0, 5, 5, 0, None, 0, 0, 0, latency)
        for name, latency in (("fast", "realtime"), ("slow", "batch"))
    ]
    view = ViewSummary("seen", "following", "", 5, 0.0, 0, 0, repeats=8765)
    assert ["at least once" in _flow_line(item) for item in flows] == [True, False]
    assert "repeats 8765" in _view_line(view)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_panel(App("shop"), RunSummary(1.0, flows, [view], []), []))
    shown = console.export_text()
    assert "fast, realtime (at least once)" in shown
    assert "8,765" in shown


def test_the_first_signal_ends_a_wait_and_is_raised_at_the_end_of_the_block() -> None:
    def run() -> None:
        with Interrupt() as interrupt:
            assert not interrupt.wait(0)
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupt.wait(3_600)
            assert (interrupt.requested, interrupt.is_ctrl_c) == (True, True)

    with pytest.raises(KeyboardInterrupt):
        run()


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_raises_at_once_while_work_can_be_given_up(
    number: signal.Signals, error: type[BaseException]
) -> None:
    reached: list[str] = []

    def run() -> None:
        with Interrupt() as interrupt, interrupt.raising():
            os.kill(os.getpid(), number)
            reached.append("the end")

    with pytest.raises(error):
        run()
    assert reached == []


def test_the_second_signal_kills_the_children_and_ends_the_process_without_cleanup() -> None:
    script = """
import os, signal
from headrace.cli.interrupt import Interrupt
with Interrupt(kill=lambda: os.write(1, b"killed")):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.write(1, b"cleanup")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=240)
    assert (done.returncode, done.stdout) == (130, b"killed")
