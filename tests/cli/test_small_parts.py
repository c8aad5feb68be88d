"""The small parts of the command line, each by itself."""

from __future__ import annotations

import io
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.demo.latency import Latencies
from headrace.cli.demo.ledger import Ledger
from headrace.cli.errors import BrokerUnreachable, UsageError
from headrace.cli.filters import compile_filters
from headrace.cli.lookup import parse_partitions
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
        ("key=abc", True),
        ("key=ab", False),
        ("key!=abc", False),
        ("key~^ab", True),
        ("key~^b", False),
        ("key!~^b", True),
        ("value*=error", True),
        ("value*=Error", False),
        ("value~[0-9]}$", True),
        ("topic=orders", True),
        ("header.trace=8", True),
        ("header.trace=9", False),
        ("header.trace!=8", False),
        ("header.none=", False),
        ("header.other!=1", True),
    ],
)
def test_a_filter_compares_one_field(text: str, passes: bool) -> None:
    assert compile_filters([text])(RECORD) is passes


def test_several_filters_must_all_let_a_record_pass() -> None:
    assert compile_filters(["key=abc", "value*=error"])(RECORD)
    assert not compile_filters(["key=abc", "value*=nothing"])(RECORD)


def test_a_null_key_equals_nothing_not_even_the_empty_text() -> None:
    assert not compile_filters(["key="])(Record("t"))
    assert compile_filters(["key="])(Record("t", key=b""))


@pytest.mark.parametrize(
    "text", ["", "key", "offset=1", "key~(", "header=1", "__import__('os')", "key==1"[:0]]
)
def test_a_filter_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        compile_filters([text])


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_as_json_loses_no_byte(key: bytes, value: bytes) -> None:
    import base64

    told = json.loads(to_json(as_json(Record("t", key=key, value=value, headers=[("h", value)]))))

    def back(source: dict[str, str], name: str) -> bytes:
        encoded = source.get(f"{name}_base64")
        return source[name].encode() if encoded is None else base64.b64decode(encoded)

    assert (back(told, "key"), back(told, "value"), back(told["headers"][0], "value")) == (key, value, value)


def test_a_tombstone_is_not_an_empty_value() -> None:
    assert as_json(Record("t", value=None))["value"] is None
    assert as_json(Record("t", value=b""))["value"] == ""
    assert as_json(Record("t", value=b"12345"), meta_only=True)["value_size"] == 5


def test_a_name_cannot_steer_the_terminal() -> None:
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
def test_addresses_are_read_as_librdkafka_reads_them(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", "a:b", "a:99999", ":1", "a:1,,b:2"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_addresses(text)


def test_one_broker_that_answers_is_enough_and_none_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = server.getsockname()[1], other.getsockname()[1]
        other.close()
        check_reachable(f"127.0.0.1:{closed},127.0.0.1:{port}")
        with pytest.raises(BrokerUnreachable) as refused:
            check_reachable(f"127.0.0.1:{closed},no.such.host.invalid:1")
    assert f"127.0.0.1:{closed}: connection refused" in refused.value.detail
    assert "the name 'no.such.host.invalid' is not known" in refused.value.detail


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_partitions(None) == []
    assert parse_partitions("0,2,5-7") == [0, 2, 5, 6, 7]
    for text in ("x", "1-", "-1", "1,,2", "0-999999999"):
        with pytest.raises(UsageError):
            parse_partitions(text)


def test_pairs_keep_what_follows_the_first_equals_sign() -> None:
    assert parse_pairs(["a=b=c", "d="], "-X") == {"a": "b=c", "d": ""}
    for text in ("a", "=b", ""):
        with pytest.raises(UsageError):
            parse_pairs([text], "-X")


@pytest.mark.parametrize(("words", "traced"), [([], False), (["-v"], True)])
def test_a_fault_of_ours_is_one_line_unless_more_is_asked_for(
    words: list[str], traced: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    @verb("fail", examples="")
    def fail(session: Session) -> None:
        """Fail."""
        raise ZeroDivisionError("by zero")

    with pytest.raises(SystemExit) as leaving:
        build(fail).main(words, prog_name="headrace fail")
    told = capfd.readouterr()
    assert (leaving.value.code, told.out) == (1, "")
    assert "something went wrong that should not have: ZeroDivisionError: by zero" in told.err
    assert ("Traceback" in told.err) is traced


@given(st.lists(st.floats(0.02, 1e5), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_percentile_is_at_most_a_tenth_too_high(times: list[float], share: float) -> None:
    import math

    latencies = Latencies()
    for time in times:
        latencies.add(time)
    exact = sorted(times)[math.ceil(len(times) * share) - 1]
    found = latencies.percentile(share)
    assert found is not None
    assert exact * 0.999 <= found <= exact * 1.1001


def test_the_ledger_counts_what_was_acknowledged_and_never_read_as_lost() -> None:
    ledger = Ledger({"g": ["t"], "other": ["u"]})
    for offset in range(3):
        ledger.acknowledge(("t", 0), offset, offset)
    ledger.read("g", [(("t", 0), 0, 0), (("t", 0), 2, 2)])
    assert ledger.groups["g"].missing == 1
    assert ledger.groups["other"].missing == 0


def test_the_ledger_counts_what_is_read_again_or_written_again_as_doubled() -> None:
    ledger = Ledger({"g": ["t"]})
    ledger.acknowledge(("t", 0), 0, 0)
    # Number 0 comes a second time at its own offset, and a third time at another one.
    ledger.read("g", [(("t", 0), 0, 0), (("t", 0), 0, 0), (("t", 0), 1, 0)])
    assert (ledger.groups["g"].doubled, ledger.groups["g"].missing) == (2, 0)


def test_the_ledger_matches_a_record_that_was_read_before_its_acknowledgement_was_heard() -> None:
    ledger = Ledger({"g": ["t"]})
    ledger.read("g", [(("t", 0), 7, 1), (("t", 0), 8, 2)])
    ledger.acknowledge(("t", 0), 7, 1)
    reading = ledger.groups["g"]
    assert (reading.missing, reading.unexplained, reading.altered) == (0, 1, 0)
    ledger.acknowledge(("t", 0), 8, 99)
    assert reading.altered == 1


@given(st.lists(st.integers(0, 2), max_size=60), st.randoms())
def test_books_over_any_interleaving_balance(partitions: list[int], order: object) -> None:
    """Acknowledgements and readings keep their order within a partition and nothing else."""
    import random

    assert isinstance(order, random.Random)
    ledger = Ledger({"g": ["t"]})
    todo: list[list[tuple[str, int, int]]] = []
    for partition in range(3):
        numbers = [number for number, where in enumerate(partitions) if where == partition]
        for what in ("ack", "read"):
            todo.append([(what, partition, number) for number in numbers])
    offsets: dict[tuple[str, int], int] = {}
    while todo := [one for one in todo if one]:
        what, partition, number = order.choice(todo).pop(0)
        offset = offsets[what, partition] = offsets.get((what, partition), -1) + 1
        if what == "ack":
            ledger.acknowledge(("t", partition), offset, number)
        else:
            ledger.read("g", [(("t", partition), offset, number)])
    reading = ledger.groups["g"]
    assert (reading.missing, reading.doubled, reading.altered, reading.unexplained) == (0, 0, 0, 0)
    assert reading.read == len(partitions)


def test_a_run_shows_which_flows_write_at_least_once_and_what_their_views_left_out() -> None:
    from rich.console import Console

    from headrace.app import App
    from headrace.cli.run.display import _flow_line, _panel, _view_line
    from headrace.runtime.look import FlowLook, Look, ViewLook

    flows = [
        FlowLook(name, "running", "", 1, 3, 0.0, 5, 5, 0, None, 0, 0, 0, latency)
        for name, latency in (("fast", "realtime"), ("slow", "batch"))
    ]
    view = ViewLook("seen", "following", "", 5, 0.0, 0, 0, repeats=8765)
    assert ["at least once" in _flow_line(one) for one in flows] == [True, False]
    assert "repeats 8765" in _view_line(view)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_panel(App("shop"), Look(1.0, flows, [view], []), []))
    shown = console.export_text()
    assert "fast, realtime (at least once)" in shown
    assert "8,765" in shown
