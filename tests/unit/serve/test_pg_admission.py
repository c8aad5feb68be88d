"""Which connections in PostgreSQL's protocol are admitted, and which one is dropped for another."""

from __future__ import annotations

import pytest

from headrace.serve.pgwire.admission import Admission, Refused

_SPARE = 20


def _admission(connections: int = 4, *, per_address: int = 1_000, per_token: int = 1_000) -> Admission:
    return Admission(connections, per_address, per_token)


def test_the_oldest_connection_that_has_not_logged_in_makes_room() -> None:
    admission = _admission()
    for number in range(4 + _SPARE):
        assert admission.connect(number, f"10.0.0.{number}") is None
    admission.log_in(0, "")
    assert admission.connect(100, "10.0.1.1") == 1
    assert admission.connect(101, "10.0.1.2") == 2


def test_a_connection_that_was_dropped_does_not_log_in() -> None:
    admission = _admission(per_address=1)
    admission.connect(0, "here")
    assert admission.connect(1, "here") == 0
    with pytest.raises(Refused, match="dropped to make room"):
        admission.log_in(0, "")
    admission.disconnect(0)
    admission.log_in(1, "")


def test_the_address_with_the_most_silent_connections_loses_one_first() -> None:
    admission = _admission()
    admission.connect(0, "good")
    for number in range(1, 4 + _SPARE):
        admission.connect(number, "flood")
    assert [admission.connect(number, "flood") for number in (100, 101, 102)] == [1, 2, 3]
    admission.log_in(0, "")


def test_an_address_at_its_limit_drops_its_own_silent_connection_and_is_refused_without_one() -> None:
    admission = _admission(per_address=2)
    admission.connect(0, "other")
    admission.connect(1, "here")
    admission.connect(2, "here")
    assert admission.connect(3, "here") == 1
    admission.log_in(2, "t")
    admission.log_in(3, "t")
    with pytest.raises(Refused, match=r"from here \(limit 2\)"):
        admission.connect(4, "here")
    admission.disconnect(2)
    assert admission.connect(5, "here") is None


def test_a_token_at_its_limit_is_refused_and_others_are_not() -> None:
    admission = _admission(per_token=1)
    for number in range(4):
        admission.connect(number, "here")
    admission.log_in(0, "one")
    with pytest.raises(Refused, match=r"this token \(limit 1\)"):
        admission.log_in(1, "one")
    admission.log_in(1, "two")
    # Without tokens nobody can be told from anybody else.
    admission.log_in(2, "")
    admission.log_in(3, "")


def test_no_more_connections_log_in_than_the_limit() -> None:
    admission = _admission(connections=2)
    for number in range(3):
        admission.connect(number, "here")
    admission.log_in(0, "")
    admission.log_in(1, "")
    with pytest.raises(Refused, match=r"connections \(limit 2\)"):
        admission.log_in(2, "")
    admission.disconnect(0)
    admission.log_in(2, "")
