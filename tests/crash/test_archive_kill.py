"""kill -9 while segments move to a bucket: the command that users run, a real S3 server, stock clients."""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.faults.forking import ROOT
from bench.faults.process import BrokerProcess
from tests.support.s3 import CREDENTIALS, S3Server
from tests.support.waiting import until

TOPIC = "orders"
ENDPOINT = "headrace.archive.s3.endpoint"
CONFIGS = {"internal.segment.bytes": "1000", "retention.bytes": "1500", "headrace.archive.enable": "true"}


def documented_options(bucket: str, endpoint: str) -> list[str]:
    """Those of the page about archives, with a bucket that is there."""
    page = (ROOT / "docs" / "how-to" / "archive.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ headrace broker --data log (.*s3://.*)$", page, re.MULTILINE)
    options = shlex.split(line)
    assert [option.partition("=")[0] for option in options[1::2]] == [
        "headrace.archive.dir",
        ENDPOINT,
    ]
    return [*options[:1], f"headrace.archive.dir=s3://{bucket}/shop", options[2], f"{ENDPOINT}={endpoint}"]


def create(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, config=CONFIGS)])[TOPIC].result(120)


def send(broker: BrokerProcess, values: list[bytes]) -> None:
    """All of them are acknowledged on return, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.num.messages": 1})
    failed: list[object] = []
    for value in values:
        producer.produce(
            TOPIC, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(120) == 0
    assert failed == []


def read_all(broker: BrokerProcess, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "tests", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes] = []
        while len(found) < count:
            message = consumer.poll(120)
            assert message is not None, f"{len(found)} of {count} records within two minutes"
            assert message.error() is None, message.error()
            assert message.offset() == len(found)
            found.append(message.value())
        return found
    finally:
        consumer.close()


def archived_bases(data: Path) -> list[int]:
    """Base offsets of the segments that count as archived, read by the documented format."""
    (path,) = data.glob("topics/*/0/archived")
    raw = path.read_bytes()
    magic, count = struct.unpack_from(">8sQ", raw)
    assert magic == b"HRARCH01"
    return [struct.unpack_from(">q", raw, 16 + 32 * number)[0] for number in range(count)]


def is_at_rest(home: Path) -> bool:
    """Whether no segment is being moved, and none is due: without the oldest one less would stay than is kept."""
    try:
        sizes = [path.stat().st_size for path in sorted(home.glob("*.log"))]
    except FileNotFoundError:
        return False
    return sum(sizes[1:]) < int(CONFIGS["retention.bytes"]) and not (home / "archiving").exists()


def test_a_broker_killed_in_the_midst_of_a_move_to_a_bucket_loses_nothing_and_leaves_nothing(
    tmp_path: Path, s3: S3Server
) -> None:
    bucket = s3.fresh_bucket()
    options = documented_options(bucket, s3.endpoint)
    with BrokerProcess(tmp_path, options=options, retention_check_ms=50) as broker:
        broker.start()
        create(broker)
        sent: list[bytes] = []
        # Before a log, between a log and its index, and when one segment has been moved already.
        for passing in (0, 1, 2):
            struck = s3.struck
            with s3.rule("hold", "PUT", passing):
                more = [b"%d-%0100d" % (passing, number) for number in range(40)]
                send(broker, more)
                sent += more
                until(lambda struck=struck: s3.struck > struck, "a request of a move to be held")  # type: ignore[misc]
                broker.kill()
            broker.start()
            assert read_all(broker, len(sent)) == sent
        home = next((tmp_path / "data" / "topics").glob("*/0"))
        until(lambda: is_at_rest(home), "all moves")
        assert broker.stop() == 0
        kept = {key.split("/")[4] for key in s3.objects(bucket)}
        bases = archived_bases(tmp_path / "data")
        assert len(bases) > 5
        assert kept == {f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index")}
        said = broker.log.read_text()
        assert not broker.traces()
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in said
        assert CREDENTIALS["AWS_ACCESS_KEY_ID"] not in said
