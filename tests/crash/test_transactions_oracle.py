"""The oracle of transactions reports every set of readable records that does not fit the outcome of the transaction."""

from __future__ import annotations

import pytest

from faults.log.oracle import Ledger, PartitionId
from faults.log.transactions import Fate, TransactionLedger, judge

A: PartitionId = ("paid", 0)
B: PartitionId = ("paid", 1)


def judge_reader(
    fate: Fate, readable: dict[PartitionId, list[bytes]], delivered: tuple[PartitionId, bytes] | None = None
) -> Ledger:
    """Judge the records that a reader sees after a transaction with ``a1``, ``a2`` and ``b1`` ended with ``fate``."""
    transactions, ledger = TransactionLedger(), Ledger()
    transaction = transactions.begin()
    transaction.values = {A: [b"a1", b"a2"], B: [b"b1"]}
    transaction.fate = fate
    if delivered is not None:
        transactions.record_delivery(*delivered)
    judge(transactions, {A: [], B: [], **readable}, ledger)
    return ledger


ALL_RECORDS = {A: [b"a1", b"a2"], B: [b"b1"]}


@pytest.mark.parametrize(
    ("fate", "readable"),
    [
        ("committed", ALL_RECORDS),
        ("requested", ALL_RECORDS),
        ("requested", {}),
        ("aborted", {}),
        ("open", {}),
    ],
)
def test_correctly_readable_transactions_pass(fate: Fate, readable: dict[PartitionId, list[bytes]]) -> None:
    assert judge_reader(fate, readable).problems == []


@pytest.mark.parametrize(
    ("fate", "readable", "problem"),
    [
        ("committed", {}, "0 of 3 records of the committed transaction 0"),
        ("committed", {A: [b"a1", b"a2"]}, "2 of 3 records of the committed transaction 0"),
        ("requested", {B: [b"b1"]}, "1 of 3 records of transaction 0 are readable"),
        ("aborted", {B: [b"b1"]}, "1 records of the aborted transaction 0 are readable"),
        ("open", ALL_RECORDS, "3 records of the open transaction 0 are readable"),
        ("committed", {A: [b"a2", b"a1"], B: [b"b1"]}, "out of order"),
        ("committed", {A: [b"a1", b"a2", b"a1"], B: [b"b1"]}, "are duplicates"),
        ("committed", {**ALL_RECORDS, B: [b"b1", b"x"]}, "no transaction wrote there"),
    ],
)
def test_the_oracle_reports_incorrectly_readable_transactions(
    fate: Fate, readable: dict[PartitionId, list[bytes]], problem: str
) -> None:
    problems = judge_reader(fate, readable).problems
    assert any(problem in text for text in problems), problems


def test_the_oracle_reports_a_delivered_record_that_is_not_readable_any_more() -> None:
    ledger = judge_reader("requested", {}, delivered=(B, b"b1"))
    assert ledger.lost == 1
    assert "not readable any more" in ledger.problems[0]
