"""``headrace consume``: start and end, output formats, and errors about deleted records."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from faults.wait import until, watched_process
from headrace.files import readable
from tests.cli.runner import COMMAND, Headrace

Fresh = Callable[..., str]


def numbers(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last))


@pytest.fixture
def ten(headrace: Headrace, fresh: Fresh) -> str:
    """A topic of one partition with the records 0 to 9."""
    name = fresh()
    headrace.ok("topic", "create", name)
    headrace.ok("produce", name, "-q", stdin=numbers(0, 10))
    return name


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ("start", "0123456789"),
        (":end", "0123456789"),
        ("end", ""),
        ("7", "789"),
        ("7:", "789"),
        ("2:5", "234"),
        (":3", "012"),
        ("8:end", "89"),
        ("8:99", "89"),
        ("+8", "89"),
        ("+99", ""),
        ("-2", "89"),
        ("-99", "0123456789"),
        ("@-1h", "0123456789"),
        ("@1h", ""),
        ("@-2h:-1h", ""),
        ("@:-1h", ""),
        ("@-1h:end", "0123456789"),
        ("10", ""),
    ],
)
def test_an_offset_range_has_a_start_and_an_end(
    headrace: Headrace, ten: str, offsets: str, expected: str
) -> None:
    assert headrace.ok("consume", ten, "-o", offsets, "--exit", "-f", "%v").out == expected


def test_consume_stops_at_the_end_of_a_range(headrace: Headrace, ten: str) -> None:
    assert headrace.ok("consume", ten, "-o", "3:6", "-f", "%v").out == "345"
    assert headrace.ok("consume", ten, "-n", "4", "-f", "%v").out == "0123"


def test_a_time_range_selects_records_by_their_timestamps(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    stamps = {"a": "2026-11-15T09:00:00Z", "b": "2026-11-15T10:00:00Z", "c": "2026-11-15T11:00:00Z"}
    lines = "".join(f"{1794733200000 + index * 3_600_000} {name}\n" for index, name in enumerate(stamps))
    headrace.ok("produce", topic, "-f", r"%d %v\n", "-q", stdin=lines.encode())
    for start, expected in {
        "@2026-11-15T10:00:00Z": "bc",
        "@2026-11-15T09:30:00Z:1h": "b",
        "@2026-11-15T09:00:00Z:2026-11-15T10:00:00Z": "a",
        "@1794733200001": "bc",
        "@:2026-11-15T11:00:00Z": "ab",
    }.items():
        assert headrace.ok("consume", topic, "-o", start, "--exit", "-f", "%v").out == expected, start


def test_a_deleted_start_offset_fails_and_names_the_missing_offsets(
    any_server: Headrace, fresh: Fresh
) -> None:
    topic = fresh()
    any_server.ok("topic", "create", topic)
    any_server.ok("produce", topic, "-q", stdin=numbers(0, 10))
    any_server.ok("topic", "trim", topic, "--before", "6", "--yes")
    result = any_server.run("consume", topic, "-o", "2", "--exit")
    assert (result.code, result.out) == (4, "")
    assert (
        f"{topic} [0]: offset 2 is no longer in the log, which now starts at 6 [HR-CLI-RECORDS-GONE]"
        in result.err
    )
    assert "offsets 2 to 5 (4 records) were deleted before they were read" in result.err
    assert "-o start" in result.err
    assert any_server.ok("consume", topic, "-o", "start", "--exit", "-f", "%v").out == "6789"


def test_a_reader_fails_when_its_next_records_are_deleted(any_server: Headrace, fresh: Fresh) -> None:
    """The reader is at the end. Before its next fetch, the log is trimmed beyond its offset."""
    topic = fresh()
    any_server.ok("topic", "create", topic)
    any_server.ok("produce", topic, "-q", stdin=numbers(0, 3))
    # One record per fetch, and a long pause between prints: the output blocks the reader.
    with any_server.started("consume", topic, "-f", r"%v\n") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        process.send_signal(signal.SIGSTOP)
        any_server.ok("produce", topic, "-q", "-X", "batch.num.messages=1", stdin=(b"x" * 900 + b"\n") * 20)
        any_server.ok("topic", "trim", topic, "--before", "20", "--yes")
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=240)
        text = err.decode()
        assert process.returncode == 4, text
        assert "which now starts at 20" in text
        assert "were deleted before they were read" in text


def test_an_offset_beyond_the_end_is_refused(headrace: Headrace, ten: str) -> None:
    result = headrace.run("consume", ten, "-o", "11")
    assert (result.code, result.out) == (2, "")
    assert "beyond the end" in result.err


def test_consume_reads_only_the_selected_partitions(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic, "-p", "3")
    headrace.ok("produce", topic, "-f", r"%p %v\n", "-q", stdin=b"0 a\n1 b\n2 c\n")
    assert headrace.ok("consume", topic, "-p", "1", "-e", "-f", "%v").out == "b"
    assert sorted(headrace.ok("consume", topic, "-p", "0,2", "-e", "-f", "%v").out) == ["a", "c"]
    missing = headrace.run("consume", topic, "-p", "7", "-e")
    assert (missing.code, "partition 7" in missing.err) == (1, True)


def test_consume_selects_topics_by_a_regular_expression(headrace: Headrace, fresh: Fresh) -> None:
    stem = fresh("stem")
    headrace.ok("topic", "create", f"{stem}-a", f"{stem}-b", f"{stem}-other")
    for name in ("a", "b", "other"):
        headrace.ok("produce", f"{stem}-{name}", "-q", stdin=name.encode())
    matched = headrace.ok("consume", f"{stem}-[ab]", "--regex", "-e", "-f", "%v")
    assert sorted(matched.out) == ["a", "b"]
    followed = headrace.ok("consume", f"{stem}-[ab]", "--regex", "-g", fresh("group"), "-n", "2", "-f", "%v")
    assert sorted(followed.out) == ["a", "b"]
    nothing = headrace.run("consume", f"{stem}-none", "--regex")
    assert (nothing.code, "no topic matches" in nothing.err) == (1, True)


def test_tail_prints_the_last_records_of_all_partitions_by_time(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic, "-p", "2")
    lines = b"".join(b"%d %d %d\n" % (number % 2, 1794733200000 + number, number) for number in range(9))
    headrace.ok("produce", topic, "-f", r"%p %d %v\n", "-q", stdin=lines)
    assert headrace.ok("consume", topic, "--tail", "3", "-f", "%v").out == "678"
    assert headrace.ok("consume", topic, "--tail", "99", "-f", "%v").out == "012345678"
    # Only records that pass the filter count, so the command must read further back.
    assert (
        headrace.ok("consume", topic, "--tail", "2", "--filter", 'value matches "^[012]$"', "-f", "%v").out
        == "12"
    )


def test_filters_select_by_key_value_and_header(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    headrace.ok("produce", topic, "-f", r"%k,%v\n", "-q", "-H", "trace=1", stdin=b"a,red\nb,green\n")
    headrace.ok("produce", topic, "-f", r"%k,%v\n", "-q", "-H", "trace=2", stdin=b"ab,dark red\n")

    def matching_keys(*filters: str) -> str:
        words = [word for text in filters for word in ("--filter", text)]
        return headrace.ok("consume", topic, "-e", "-f", "%k ", *words).out

    assert matching_keys('key matches "^a"') == "a ab "
    assert matching_keys('value contains "red"') == "a ab "
    assert matching_keys('value contains "red"', "header.trace=2") == "ab "
    assert headrace.ok("consume", topic, "--filter", 'key = "b"', "-n", "1", "-f", "%k").out == "b"


def test_without_a_format_each_record_is_one_line_of_json(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    headrace.ok("produce", topic, "-f", r"%K{1}%k%V{3}%v", "-q", "-H", "h=1", stdin=b"k\xff\x00\n")
    (document,) = headrace.ok("consume", topic, "-e").json
    assert {
        name: document[name] for name in ("topic", "key", "value_base64", "headers", "partition", "offset")
    } == {
        "topic": topic,
        "key": "k",
        "value_base64": "/wAK",
        "headers": [{"key": "h", "value": "1"}],
        "partition": 0,
        "offset": 0,
    }
    assert abs(document["timestamp"] - time.time() * 1_000) < 3_600_000
    (meta,) = headrace.ok("consume", topic, "-e", "--meta-only").json
    assert meta["value_size"] == 3
    assert "value_base64" not in meta
    pretty = headrace.ok("consume", topic, "-e", "--pretty")
    assert pretty.lines[0] == "{"
    assert headrace.run("consume", topic, "--json", "-f", "%v").code == 2


def test_format_fields_for_the_bounds_of_the_log_are_filled_in(headrace: Headrace, ten: str) -> None:
    assert headrace.ok("consume", ten, "-o", "4:5", "-f", "%t %p %o %[ %] %i").out == f"{ten} 0 4 0 10 1"


def test_a_group_continues_from_its_committed_offsets(any_server: Headrace, fresh: Fresh) -> None:
    topic, group = fresh(), fresh("group")
    any_server.ok("topic", "create", topic)
    any_server.ok("produce", topic, "-q", stdin=numbers(0, 5))
    assert any_server.ok("consume", topic, "-g", group, "-n", "2", "-f", "%v").out == "01"
    assert any_server.ok("consume", topic, "-g", group, "-n", "2", "-f", "%v").out == "23"
    assert any_server.ok("consume", topic, "-g", group, "--exit", "-f", "%v").out == "4"
    assert any_server.ok("consume", topic, "-g", group, "--exit", "-f", "%v").out == ""
    (document,) = any_server.ok("lag", group, "--json").json
    assert (document["committed"], document["lag"]) == (5, 0)


def test_a_new_group_can_begin_at_the_end(headrace: Headrace, ten: str, fresh: Fresh) -> None:
    group = fresh("group")
    with headrace.started("consume", ten, "-g", group, "-o", "end", "-n", "1", "-f", "%v") as process:
        with watched_process(process, "headrace consume"):
            until(lambda: "stable" in headrace.ok("group", "list").out, "the group is stable")
            until(lambda: headrace.run("group", "describe", group).code == 0, "the member has its partition")
        # The member queries the end of the topic a moment after it has joined.
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            headrace.ok("produce", ten, "-q", stdin=b"new\n")
        out, _ = process.communicate(timeout=120)
        assert out == b"new"


def test_a_group_fails_and_keeps_its_offset_when_its_next_records_are_deleted(
    any_server: Headrace, fresh: Fresh
) -> None:
    topic, group = fresh(), fresh("group")
    any_server.ok("topic", "create", topic)
    any_server.ok("produce", topic, "-q", stdin=numbers(0, 10))
    any_server.ok("consume", topic, "-g", group, "-n", "2")
    any_server.ok("topic", "trim", topic, "--before", "7", "--yes")
    result = any_server.run("consume", topic, "-g", group, "--exit")
    assert (result.code, result.out) == (4, "")
    assert "offsets 2 to 6 (5 records) were deleted before they were read" in result.err
    assert "headrace group seek" in result.err
    (document,) = any_server.ok("lag", group, "--json").json
    assert (document["committed"], document["lag"], document["gone"]) == (2, 3, 5)


@pytest.mark.parametrize("words", [["-p", "0"], ["-o", "5"], ["-o", ":end"], ["-o", "@-1h"]])
def test_the_group_option_rejects_partitions_and_exact_offsets(
    headrace: Headrace, ten: str, words: list[str]
) -> None:
    result = headrace.run("consume", ten, "-g", "any", *words)
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize("in_group", [False, True], ids=["alone", "group"])
def test_ctrl_c_exits_with_130_and_keeps_the_output(
    headrace: Headrace, ten: str, fresh: Fresh, in_group: bool
) -> None:
    group = fresh("group")
    with headrace.started("consume", ten, "-f", r"%v\n", *(["-g", group] if in_group else [])) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)] == [b"%d\n" % number for number in range(10)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (130, b"", b"")
        if in_group:
            (document,) = headrace.ok("group", "describe", group, "--json").json
            assert document["state"] == "empty", "the member left the group and did not time out"
            assert document["partitions"][0]["committed"] == 10


def test_sigterm_stops_as_cleanly_as_ctrl_c(headrace: Headrace, ten: str, fresh: Fresh) -> None:
    group = fresh("group")
    with headrace.started("consume", ten, "-g", group, "-f", r"%v\n") as process:
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 143
        process.communicate()
        (document,) = headrace.ok("group", "describe", group, "--json").json
        assert (document["state"], document["partitions"][0]["committed"]) == ("empty", 10)


def test_a_closed_pipe_ends_the_command_without_an_error_message(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    headrace.ok("produce", topic, "-q", stdin=numbers(0, 20_000))
    piped = subprocess.run(
        ["bash", "-c", f"{COMMAND} consume {topic} -f '%v\\n' | head -2; echo ${{PIPESTATUS[0]}}"],
        env=headrace.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert piped.stdout.splitlines() == ["0", "1", "141"]
    assert piped.stderr == ""


def test_consume_prints_records_as_they_arrive(headrace: Headrace, ten: str) -> None:
    with headrace.started("consume", ten, "-o", "end", "-f", r"%v\n") as process:
        assert process.stdout is not None
        # Write repeatedly, because the test cannot see when the reader has queried the end.
        for _ in range(50):
            headrace.ok("produce", ten, "-q", stdin=b"live\n")
            if readable(process.stdout.fileno(), 0):
                break
        assert process.stdout.readline() == b"live\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
