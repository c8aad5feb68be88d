"""The oracle of transactions can fail: each way of showing a transaction wrongly is objected to."""

from __future__ import annotations

import pytest

from bench.faults.oracle import Ledger, Place
from bench.faults.paying import Accounts, Fate, judge

A: Place = ("paid", 0)
B: Place = ("paid", 1)


def judged(fate: Fate, shown: dict[Place, list[bytes]], given: tuple[Place, bytes] | None = None) -> Ledger:
    """One transaction that wrote ``a1``, ``a2`` and ``b1``, with this fate, and what a reader finds."""
    accounts, ledger = Accounts(), Ledger()
    one = accounts.begin()
    one.values = {A: [b"a1", b"a2"], B: [b"b1"]}
    one.fate = fate
    if given is not None:
        accounts.give(*given)
    judge(accounts, {A: [], B: [], **shown}, ledger)
    return ledger


WHOLE = {A: [b"a1", b"a2"], B: [b"b1"]}


@pytest.mark.parametrize(
    ("fate", "shown"), [("committed", WHOLE), ("asked", WHOLE), ("asked", {}), ("aborted", {}), ("open", {})]
)
def test_what_is_right_passes(fate: Fate, shown: dict[Place, list[bytes]]) -> None:
    assert judged(fate, shown).problems == []


@pytest.mark.parametrize(
    ("fate", "shown", "problem"),
    [
        ("committed", {}, "0 of 3 records of the committed transaction 0"),
        ("committed", {A: [b"a1", b"a2"]}, "2 of 3 records of the committed transaction 0"),
        ("asked", {B: [b"b1"]}, "1 of 3 records of transaction 0 are shown"),
        ("aborted", {B: [b"b1"]}, "1 records of transaction 0 are shown, which is aborted"),
        ("open", WHOLE, "3 records of transaction 0 are shown, which is open"),
        ("committed", {A: [b"a2", b"a1"], B: [b"b1"]}, "out of order"),
        ("committed", {A: [b"a1", b"a2", b"a1"], B: [b"b1"]}, "there twice"),
        ("committed", {**WHOLE, B: [b"b1", b"x"]}, "no transaction wrote there"),
    ],
)
def test_what_is_wrong_is_objected_to(fate: Fate, shown: dict[Place, list[bytes]], problem: str) -> None:
    problems = judged(fate, shown).problems
    assert any(problem in said for said in problems), problems


def test_what_a_reader_was_given_once_must_stay() -> None:
    ledger = judged("asked", {}, given=(B, b"b1"))
    assert ledger.lost == 1
    assert "not shown any more" in ledger.problems[0]
