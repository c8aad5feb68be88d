"""``headrace produce``: every record arrives unchanged, or the command fails with the reason."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2

from tests.cli.runner import Headrace

Fresh = Callable[..., str]


@pytest.fixture
def topic(headrace: Headrace, fresh: Fresh) -> str:
    name = fresh()
    headrace.ok("topic", "create", name)
    return name


def test_lines_become_records_and_each_one_is_confirmed(headrace: Headrace, topic: str) -> None:
    result = headrace.ok("produce", topic, stdin=b"one\ntwo")
    assert [line.split(" with ")[0] for line in result.lines] == [
        "Produced to partition 0 at offset 0",
        "Produced to partition 0 at offset 1",
    ]
    assert headrace.ok("consume", topic, "-e", "-f", "%v;").out == "one;two;"


def test_keys_headers_and_values_come_from_flags_and_format(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic)
    headrace.ok("produce", topic, "-f", r"%k,%v\n", "-H", "a=1", "-H", "b=", stdin=b"k1,v1\n,v2\n")
    headrace.ok("produce", topic, "-k", "fixed", "-o", "%k at %o\n", stdin=b"v3\n")
    shown = headrace.ok("consume", topic, "-e", "-f", r"%k=%v %h{%k:%v;}\n")
    assert shown.lines == ["k1=v1 a:1;b:;", "=v2 a:1;b:;", "fixed=v3 "]


def test_any_bytes_pass_through_produce_and_consume(headrace: Headrace, fresh: Fresh) -> None:
    topic, copy = fresh(), fresh()
    headrace.ok("topic", "create", topic, copy)
    lengths = "%K{big32}%k%V{big32}%v"
    records = [(bytes(range(256)), b"\n\0\xff" * 50), (b"", b""), (b"\n", b"%v\\n")]
    data = b"".join(
        len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value for key, value in records
    )
    headrace.ok("produce", topic, "-f", lengths, "-q", "-z", "zstd", stdin=data)
    out = headrace.ok("consume", topic, "-e", "-f", lengths).raw
    assert out == data
    headrace.ok("produce", copy, "-f", lengths, "-q", stdin=out)
    assert headrace.ok("consume", copy, "-e", "-f", lengths).raw == data


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_codec_are_delivered(headrace: Headrace, topic: str, codec: str) -> None:
    value = b"x" * 5_000
    headrace.ok("produce", topic, "-z", codec, "-q", stdin=value)
    assert headrace.ok("consume", topic, "-e", "-f", "%v").raw == value


def test_a_key_gets_the_partition_that_the_java_client_selects(any_server: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    any_server.ok("topic", "create", topic, "-p", "7")
    keys = [f"key-{number}" for number in range(40)]
    any_server.ok("produce", topic, "-f", r"%k\n", "-q", stdin="\n".join(keys).encode())
    found = dict(line.split() for line in any_server.ok("consume", topic, "-e", "-f", r"%k %p\n").lines)
    assert found == {key: str((murmur2(key.encode()) & 0x7FFFFFFF) % 7) for key in keys}


def test_a_partition_can_be_named_by_flag_and_by_format(headrace: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    headrace.ok("topic", "create", topic, "-p", "3")
    headrace.ok("produce", topic, "-p", "2", "-k", "a", "-q", stdin=b"one\n")
    headrace.ok("produce", topic, "-f", r"%p %v\n", "-q", stdin=b"1 two\n0 three\n")
    shown = headrace.ok("consume", topic, "-e", "-f", r"%p %v\n").lines
    assert sorted(shown) == ["0 three", "1 two", "2 one"]
    missing = headrace.run("produce", topic, "-p", "9", stdin=b"x\n")
    assert missing.code == 1
    assert "partition" in missing.err


def test_an_empty_value_is_a_tombstone_only_with_the_option(headrace: Headrace, topic: str) -> None:
    headrace.ok("produce", topic, "-f", r"%k,%v\n", "-q", stdin=b"a,\n")
    headrace.ok("produce", topic, "-f", r"%k,%v\n", "-q", "-Z", stdin=b"b,\nc,3\n")
    headrace.ok("produce", topic, "-f", r"%k\n", "-q", "--tombstone", stdin=b"d\n")
    shown = headrace.ok("consume", topic, "-e", "--json").json
    assert [(item["key"], item["value"]) for item in shown] == [
        ("a", ""),
        ("b", None),
        ("c", "3"),
        ("d", None),
    ]


def test_a_timestamp_in_the_input_becomes_the_record_timestamp(headrace: Headrace, topic: str) -> None:
    headrace.ok("produce", topic, "-f", r"%d %v\n", "-q", stdin=b"1794735000123 x\n")
    assert headrace.ok("consume", topic, "-e", "-f", "%d").out == "1794735000123"


def test_delimiters_are_literal_text(headrace: Headrace, topic: str) -> None:
    headrace.ok("produce", topic, "-D", "%;", "-K", ":", "-q", stdin=b"k:v%;l:w\nx%;")
    assert headrace.ok("consume", topic, "-e", "-f", "[%k|%v]").out == "[k|v][l|w\nx]"


def test_files_are_read_one_after_the_other(headrace: Headrace, topic: str, tmp_path: Path) -> None:
    for name, text in (("a", "1\n2\n"), ("b", "3\n")):
        (tmp_path / name).write_text(text)
    headrace.ok("produce", topic, str(tmp_path / "a"), str(tmp_path / "b"), "-q")
    assert headrace.ok("consume", topic, "-e", "-f", "%v").out == "123"
    missing = headrace.run("produce", topic, str(tmp_path / "c"))
    assert (missing.code, "No such file" in missing.err) == (1, True)


def test_json_confirms_each_record_with_partition_and_offset(headrace: Headrace, topic: str) -> None:
    (document,) = headrace.ok("produce", topic, "--json", stdin=b"x\n").json
    assert (document["topic"], document["partition"], document["offset"]) == (topic, 0, 0)


def test_produce_does_not_create_a_missing_topic_by_accident(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    result = headrace.run("produce", name, stdin=b"x\n")
    assert (result.code, result.out) == (1, "")
    assert f"topic '{name}' does not exist" in result.err
    assert name not in headrace.ok("topic", "list").out
    headrace.ok("produce", name, "--allow-auto-topic-creation", stdin=b"x\n")
    assert name in headrace.ok("topic", "list").out


def test_a_rejected_record_fails_the_command_with_the_counts(any_server: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    any_server.ok("topic", "create", topic, "-c", "max.message.bytes=2000")
    any_server.ok("produce", topic, "-q", stdin=b"small\n")
    # One batch per record, so that the broker can accept the small record before the large one.
    result = any_server.run(
        "produce", topic, "-X", "batch.num.messages=1", stdin=b"small\n" + b"x" * 5_000 + b"\n"
    )
    assert result.code == 1
    assert "1 of 2 records were not delivered, 1 were delivered" in result.err
    assert "HR-CLI-DELIVERY" in result.err
    assert any_server.ok("consume", topic, "-e", "-f", "%v ").out == "small small "


def test_input_that_does_not_match_fails_after_the_records_before_it(headrace: Headrace, topic: str) -> None:
    result = headrace.run("produce", topic, "-f", r"%v{hex}\n", stdin=b"61\nzz\n62\n")
    assert result.code == 1
    assert "record 2: b'zz' is not hexadecimal" in result.err
    assert "1 of 1 records were delivered" in result.err
    assert headrace.ok("consume", topic, "-e", "-f", "%v").out == "a"


def test_a_record_is_confirmed_while_the_input_stays_open(headrace: Headrace, topic: str) -> None:
    with headrace.started("produce", topic, "-o", "%o\n", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset in range(3):
            os.write(process.stdin.fileno(), b"line\n")
            assert process.stdout.readline() == b"%d\n" % offset
        process.communicate()
        assert process.returncode == 0


def test_every_value_of_acks_is_accepted_and_only_all_is_idempotent(headrace: Headrace, topic: str) -> None:
    for acks in ("all", "-1", "1", "0"):
        headrace.ok("produce", topic, "--acks", acks, "-q", "-o", "", stdin=b"x\n")
    # With acks=0 the broker does not respond, so wait until the record can be read.
    from faults.wait import until

    until(lambda: len(headrace.ok("consume", topic, "-e").lines) == 4, "four records")
