"""The oracle objects to each thing that must not happen, and to nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from bench.faults.batches import Batch, build_batch, parse_batches
from bench.faults.oracle import Ledger, Place, Sent, View, view_of_files
from bench.faults.sim_book import Objections
from bench.faults.table import Found, Table

PLACE: Place = ("t", 0)


def records(count: int, *, producer: str = "p", batch: int = 1) -> list[Sent]:
    return [
        Sent(PLACE, f"{producer}:{n}:".encode(), producer, n, batch, once=True, ordered=True)
        for n in range(count)
    ]


def view(values: list[bytes], start: int = 0) -> View:
    return View(PLACE, start, start + len(values), dict(enumerate(values, start)))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def sent_and_acked(ledger: Ledger, count: int = 4) -> list[bytes]:
    sent = records(count)
    ledger.send(sent)
    ledger.ack(sent, 0)
    return [one.value for one in sent]


def test_a_log_that_kept_everything_is_not_objected_to(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    ledger.give(PLACE, 2, values[2])
    ledger.check(view(values))
    assert (ledger.problems, ledger.lost, ledger.duplicated) == ([], 0, 0)
    assert (ledger.sent, ledger.acked) == (4, 4)


def test_an_unanswered_batch_may_be_there_or_not(ledger: Ledger) -> None:
    sent = records(3)
    ledger.send(sent)
    ledger.check(view([]))
    ledger.check(view([one.value for one in sent]))
    assert ledger.problems == []


def test_an_unanswered_batch_may_not_be_there_by_half(ledger: Ledger) -> None:
    sent = records(3)
    ledger.send(sent)
    ledger.check(view([one.value for one in sent[:2]]))
    assert any("2 of 3 records" in problem for problem in ledger.problems)


def test_an_acknowledged_record_that_is_gone_is_a_loss(ledger: Ledger) -> None:
    ledger.check(view(sent_and_acked(ledger)[:3]))
    assert ledger.lost == 1


def test_a_record_that_a_consumer_was_given_and_that_is_gone_is_a_loss(ledger: Ledger) -> None:
    sent = records(1)
    ledger.send(sent)
    ledger.give(PLACE, 0, sent[0].value)
    ledger.check(view([]))
    assert ledger.lost == 1


def test_a_record_that_is_there_twice_is_a_duplicate_only_if_it_was_to_be_there_once(ledger: Ledger) -> None:
    values = sent_and_acked(ledger, 1)
    ledger.check(view(values * 2))
    assert ledger.duplicated == 1
    other = Ledger()
    sent = [Sent(PLACE, b"p:0:", "p", 0, once=False, ordered=False)]
    other.send(sent)
    other.ack(sent, 0)
    other.check(view([b"p:0:"] * 2))
    assert (other.duplicated, other.problems) == (0, [])


def test_a_hole_in_the_offsets_is_objected_to(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    found = view(values)
    del found.values[1]
    ledger.check(found)
    assert any("cannot be read" in problem for problem in ledger.problems)


def test_what_nobody_sent_is_objected_to(ledger: Ledger) -> None:
    ledger.check(view([*sent_and_acked(ledger), b"stranger"]))
    assert any("nobody sent" in problem for problem in ledger.problems)


def test_an_offset_that_changes_its_bytes_is_objected_to(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    ledger.give(PLACE, 0, values[0])
    ledger.give(PLACE, 0, values[1])
    assert any("and later as" in problem for problem in ledger.problems)
    ledger.check(view([values[1], values[0], *values[2:]]))
    assert any("but is elsewhere" in problem for problem in ledger.problems)


def test_records_in_another_order_than_their_producer_s_are_objected_to(ledger: Ledger) -> None:
    sent = records(2, batch=-1)
    ledger.send(sent)
    ledger.check(view([sent[1].value, sent[0].value]))
    assert any("sent 1 before 0" in problem for problem in ledger.problems)


def test_a_start_is_moved_only_where_that_is_allowed_and_never_back(ledger: Ledger) -> None:
    values = sent_and_acked(ledger)
    ledger.saw_start(PLACE, 2)
    ledger.check(view(values[2:], start=2), trimmed=True)
    assert (ledger.problems, ledger.lost) == ([], 0)
    ledger.check(view(values[2:], start=2))
    assert any("nothing may be deleted" in problem for problem in ledger.problems)
    ledger.problems.clear()
    ledger.check(view(values[1:], start=1), trimmed=True)
    assert any("moved back" in problem for problem in ledger.problems)


def test_two_acks_at_different_offsets_are_objected_to(ledger: Ledger) -> None:
    sent = records(1)
    ledger.send(sent)
    ledger.ack(sent, 0)
    ledger.ack(sent, 5)
    assert any("acknowledged at 0 and at 5" in problem for problem in ledger.problems)


def test_a_producer_id_that_is_given_out_twice_is_objected_to(ledger: Ledger) -> None:
    ledger.take_producer_id(1)
    ledger.take_producer_id(2)
    assert ledger.problems == []
    ledger.take_producer_id(1)
    assert ledger.problems == ["producer id 1 was given out twice"]


# Its own reading of the format


def placed(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def test_its_batches_are_those_of_a_stock_client() -> None:
    values = [b"", b"x" * 200, b"\0\xff"]
    batch = build_batch(values, 1_700_000_000_000, producer_id=7, epoch=1, sequence=40)
    stock = DefaultRecordBatch(batch)
    assert stock.validate_crc()
    assert [record.value for record in stock] == values
    assert (stock.producer_id, stock.base_sequence) == (7, 40)
    (own,) = parse_batches(placed(batch, 12))
    assert isinstance(own, Batch)
    assert (own.base_offset, own.next_offset, own.producer_id, own.base_sequence) == (12, 15, 7, 40)
    assert own.values == tuple(values)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    batch = build_batch([b"a", b"b"], 1)
    (tmp_path / f"{0:020d}.log").write_bytes(placed(batch, 0) + placed(batch, 2))
    (tmp_path / f"{4:020d}.log").write_bytes(placed(batch, 4))
    return tmp_path


def test_whole_files_are_read_to_their_end(files: Path) -> None:
    problems: list[str] = []
    found = view_of_files(files, PLACE, problems.append)
    assert (found.start, found.end, len(found.values), problems) == (0, 6, 6, [])


@pytest.mark.parametrize(
    ("harm", "objection"),
    [
        (lambda raw: raw[:-1], "no whole batch"),
        (lambda raw: raw + b"\0" * 5, "stray bytes"),
        (lambda raw: raw[:-3] + b"\xff" + raw[-2:], "fails its CRC"),
        (lambda raw: placed(raw, 9), "offset 9 where 4 was due"),
    ],
)
def test_torn_damaged_and_misplaced_batches_are_objected_to(
    files: Path, harm: object, objection: str
) -> None:
    path = files / f"{4:020d}.log"
    assert callable(harm)
    path.write_bytes(harm(path.read_bytes()))
    problems: list[str] = []
    view_of_files(files, PLACE, problems.append)
    assert any(objection in problem for problem in problems)


def test_a_missing_file_between_others_is_objected_to(files: Path) -> None:
    (files / f"{4:020d}.log").rename(files / f"{6:020d}.log")
    problems: list[str] = []
    view_of_files(files, PLACE, problems.append)
    assert any("the file before it ends at 4" in problem for problem in problems)


def _judged(*, answered: bool, removed_below: int) -> Objections:
    """A key was written at offset 0 and then deleted; nothing of it is found."""
    objections = Objections()
    table = Table("t", objections)
    table.ack([table.send(b"k", b"v")], 0)
    deletion, other = table.send(b"k", None), table.send(b"other", b"v")
    if answered:
        table.ack([deletion], 1)
    table.ack([other], 2)
    table.judge([Found(2, other.number, b"other", b"v")], 3, removed_below)
    return objections


@pytest.mark.parametrize("answered", [True, False])
def test_a_key_may_be_gone_by_a_deletion_that_is_told_whether_it_was_answered_or_not(answered: bool) -> None:
    assert _judged(answered=answered, removed_below=2).problems == []


@pytest.mark.parametrize("answered", [True, False])
def test_a_key_that_is_gone_by_a_deletion_that_nobody_told_of_is_objected_to(answered: bool) -> None:
    assert _judged(answered=answered, removed_below=0).problems


def test_a_newest_value_that_is_gone_without_any_deletion_is_lost() -> None:
    objections = Objections()
    table = Table("t", objections)
    table.ack([table.send(b"k", b"v")], 0)
    table.judge([], 1, 1)
    assert objections.lost == 1
