"""The oracle reports every forbidden outcome, and accepts every allowed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from faults.log.compacted_oracle import StoredRecord, Table
from faults.log.oracle import Ledger, PartitionId, PartitionView, Sent, view_of_files
from faults.protocol.batches import Batch, build_batch, parse_batches
from faults.simulation.partition_oracle import Findings

PARTITION: PartitionId = ("t", 0)


def records(count: int, *, producer: str = "p", batch: int = 1) -> list[Sent]:
    return [
        Sent(PARTITION, f"{producer}:{n}:".encode(), producer, n, batch, once=True, ordered=True)
        for n in range(count)
    ]


def view(values: list[bytes], start: int = 0) -> PartitionView:
    return PartitionView(PARTITION, start, start + len(values), dict(enumerate(values, start)))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def sent_and_acked(ledger: Ledger, count: int = 4) -> list[bytes]:
    sent = records(count)
    ledger.send(sent)
    ledger.ack(sent, 0)
    return [record.value for record in sent]


def test_a_log_with_every_acknowledged_record_has_no_problem(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    ledger.record_delivery(PARTITION, 2, values[2])
    ledger.check(view(values))
    assert (ledger.problems, ledger.lost, ledger.duplicated) == ([], 0, 0)
    assert (ledger.sent, ledger.acked) == (4, 4)


def test_a_batch_without_a_response_may_exist_or_not(ledger: Ledger) -> None:
    sent = records(3)
    ledger.send(sent)
    ledger.check(view([]))
    ledger.check(view([record.value for record in sent]))
    assert ledger.problems == []


def test_the_oracle_reports_half_of_a_batch_without_a_response(ledger: Ledger) -> None:
    sent = records(3)
    ledger.send(sent)
    ledger.check(view([record.value for record in sent[:2]]))
    assert any("2 of 3 records" in problem for problem in ledger.problems)


def test_an_acknowledged_record_that_disappears_is_a_loss(ledger: Ledger) -> None:
    ledger.check(view(sent_and_acked(ledger)[:3]))
    assert ledger.lost == 1


def test_a_delivered_record_that_disappears_is_a_loss(ledger: Ledger) -> None:
    sent = records(1)
    ledger.send(sent)
    ledger.record_delivery(PARTITION, 0, sent[0].value)
    ledger.check(view([]))
    assert ledger.lost == 1


def test_a_repeated_record_is_a_duplicate_only_if_it_must_exist_once(ledger: Ledger) -> None:
    values = sent_and_acked(ledger, 1)
    ledger.check(view(values * 2))
    assert ledger.duplicated == 1
    other = Ledger()
    sent = [Sent(PARTITION, b"p:0:", "p", 0, once=False, ordered=False)]
    other.send(sent)
    other.ack(sent, 0)
    other.check(view([b"p:0:"] * 2))
    assert (other.duplicated, other.problems) == (0, [])


def test_the_oracle_reports_a_gap_in_the_offsets(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    damaged = view(values)
    del damaged.values[1]
    ledger.check(damaged)
    assert any("cannot be read" in problem for problem in ledger.problems)


def test_the_oracle_reports_a_record_that_no_client_sent(ledger: Ledger) -> None:
    ledger.check(view([*sent_and_acked(ledger), b"stranger"]))
    assert any("no client sent" in problem for problem in ledger.problems)


def test_the_oracle_reports_an_offset_whose_record_changes(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    ledger.record_delivery(PARTITION, 0, values[0])
    ledger.record_delivery(PARTITION, 0, values[1])
    assert any("and later as" in problem for problem in ledger.problems)
    ledger.check(view([values[1], values[0], *values[2:]]))
    assert any("but is at another offset" in problem for problem in ledger.problems)


def test_the_oracle_reports_records_that_are_not_in_the_order_of_their_producer(ledger: Ledger) -> None:
    sent = records(2, batch=-1)
    ledger.send(sent)
    ledger.check(view([sent[1].value, sent[0].value]))
    assert any("sent 1 before 0" in problem for problem in ledger.problems)


def test_the_log_start_moves_only_when_allowed_and_never_back(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    ledger.record_start(PARTITION, 2)
    ledger.check(view(values[2:], start=2), trimmed=True)
    assert (ledger.problems, ledger.lost) == ([], 0)
    ledger.check(view(values[2:], start=2))
    assert any("no record may be deleted" in problem for problem in ledger.problems)
    ledger.problems.clear()
    ledger.check(view(values[1:], start=1), trimmed=True)
    assert any("moved back" in problem for problem in ledger.problems)


def test_the_oracle_reports_two_acks_at_different_offsets(ledger: Ledger) -> None:
    sent = records(1)
    ledger.send(sent)
    ledger.ack(sent, 0)
    ledger.ack(sent, 5)
    assert any("acknowledged at offset 0 and at 5" in problem for problem in ledger.problems)


def test_the_oracle_reports_a_producer_id_that_is_assigned_twice(ledger: Ledger) -> None:
    ledger.record_producer_id(1)
    ledger.record_producer_id(2)
    assert ledger.problems == []
    ledger.record_producer_id(1)
    assert ledger.problems == ["producer id 1 was assigned twice"]


# The oracle's own parser of the format


def at_offset(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def test_the_batch_builder_and_parser_of_the_oracle_agree_with_a_stock_client() -> None:
    values = [b"", b"x" * 200, b"\0\xff"]
    batch = build_batch(values, 1_700_000_000_000, producer_id=7, epoch=1, sequence=40)
    stock_batch = DefaultRecordBatch(batch)
    assert stock_batch.validate_crc()
    assert [record.value for record in stock_batch] == values
    assert (stock_batch.producer_id, stock_batch.base_sequence) == (7, 40)
    (parsed,) = parse_batches(at_offset(batch, 12))
    assert isinstance(parsed, Batch)
    assert (parsed.base_offset, parsed.next_offset, parsed.producer_id, parsed.base_sequence) == (
        12,
        15,
        7,
        40,
    )
    assert parsed.values == tuple(values)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    batch = build_batch([b"a", b"b"], 1)
    (tmp_path / f"{0:020d}.log").write_bytes(at_offset(batch, 0) + at_offset(batch, 2))
    (tmp_path / f"{4:020d}.log").write_bytes(at_offset(batch, 4))
    return tmp_path


def test_whole_files_are_read_to_their_end(files: Path) -> None:
    problems: list[str] = []
    partition_view = view_of_files(files, PARTITION, problems.append)
    assert (partition_view.start, partition_view.end, len(partition_view.values), problems) == (0, 6, 6, [])


@pytest.mark.parametrize(
    ("damage", "problem_text"),
    [
        (lambda raw: raw[:-1], "no whole batch"),
        (lambda raw: raw + b"\0" * 5, "stray bytes"),
        (lambda raw: raw[:-3] + b"\xff" + raw[-2:], "fails its CRC"),
        (lambda raw: at_offset(raw, 9), "offset 9 instead of 4"),
    ],
)
def test_the_oracle_reports_torn_damaged_and_misplaced_batches(
    files: Path, damage: object, problem_text: str
) -> None:
    path = files / f"{4:020d}.log"
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    problems: list[str] = []
    view_of_files(files, PARTITION, problems.append)
    assert any(problem_text in problem for problem in problems)


def test_the_oracle_reports_a_missing_segment_between_others(files: Path) -> None:
    (files / f"{4:020d}.log").rename(files / f"{6:020d}.log")
    problems: list[str] = []
    view_of_files(files, PARTITION, problems.append)
    assert any("the file before it ends at 4" in problem for problem in problems)


def _judge_deleted_key(*, acknowledged: bool, removed_below: int) -> Findings:
    """Judge a log in which a key was written at offset 0 and then deleted, and which has neither record any more."""
    findings = Findings()
    table = Table("t", findings)
    table.ack([table.send(b"k", b"v")], 0)
    deletion, other = table.send(b"k", None), table.send(b"other", b"v")
    if acknowledged:
        table.ack([deletion], 1)
    table.ack([other], 2)
    table.judge([StoredRecord(2, other.number, b"other", b"v")], 3, removed_below)
    return findings


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_reported_deletion_may_remove_its_key_with_or_without_a_response(acknowledged: bool) -> None:
    assert _judge_deleted_key(acknowledged=acknowledged, removed_below=2).problems == []


@pytest.mark.parametrize("acknowledged", [True, False])
def test_the_oracle_reports_a_key_that_disappears_without_a_reported_deletion(acknowledged: bool) -> None:
    assert _judge_deleted_key(acknowledged=acknowledged, removed_below=0).problems


def test_a_newest_value_that_disappears_without_a_deletion_is_lost() -> None:
    findings = Findings()
    table = Table("t", findings)
    table.ack([table.send(b"k", b"v")], 0)
    table.judge([], 1, 1)
    assert findings.lost == 1
