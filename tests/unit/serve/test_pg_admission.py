"""Admission of connections in PostgreSQL's protocol: which are accepted, and which one is dropped for another."""

from __future__ import annotations

import pytest

from headrace.serve.sql.wire.listener import Admission, ConnectionRefused

_UNAUTHENTICATED_MAX = 20


def _admission(connections: int = 4, *, per_address: int = 1_000, per_token: int = 1_000) -> Admission:
    return Admission(connections, per_address, per_token)


def test_the_oldest_connection_without_a_login_is_dropped_for_a_new_one() -> None:
    admission = _admission()
    for number in range(4 + _UNAUTHENTICATED_MAX):
        assert admission.connect(number, f"10.0.0.{number}") is None
    admission.log_in(0, "")
    assert admission.connect(100, "10.0.1.1") == 1
    assert admission.connect(101, "10.0.1.2") == 2


def test_a_dropped_connection_cannot_log_in() -> None:
    admission = _admission(per_address=1)
    admission.connect(0, "here")
    assert admission.connect(1, "here") == 0
    with pytest.raises(ConnectionRefused, match="dropped to make room"):
        admission.log_in(0, "")
    admission.disconnect(0)
    admission.log_in(1, "")


def test_the_address_with_the_most_connections_without_a_login_loses_one_first() -> None:
    admission = _admission()
    admission.connect(0, "good")
    for number in range(1, 4 + _UNAUTHENTICATED_MAX):
        admission.connect(number, "flood")
    assert [admission.connect(number, "flood") for number in (100, 101, 102)] == [1, 2, 3]
    admission.log_in(0, "")


def test_an_address_at_its_limit_is_refused_unless_it_has_a_connection_without_a_login() -> None:
    admission = _admission(per_address=2)
    admission.connect(0, "other")
    admission.connect(1, "here")
    admission.connect(2, "here")
    assert admission.connect(3, "here") == 1
    admission.log_in(2, "t")
    admission.log_in(3, "t")
    with pytest.raises(ConnectionRefused, match=r"from here \(limit 2\)"):
        admission.connect(4, "here")
    admission.disconnect(2)
    assert admission.connect(5, "here") is None


def test_a_token_at_its_limit_is_refused_and_others_are_not() -> None:
    admission = _admission(per_token=1)
    for number in range(4):
        admission.connect(number, "here")
    admission.log_in(0, "one")
    with pytest.raises(ConnectionRefused, match=r"this token \(limit 1\)"):
        admission.log_in(1, "one")
    admission.log_in(1, "two")
    # Clients without a token cannot be distinguished, so the limit does not apply.
    admission.log_in(2, "")
    admission.log_in(3, "")


def test_no_more_connections_log_in_than_the_limit() -> None:
    admission = _admission(connections=2)
    for number in range(3):
        admission.connect(number, "here")
    admission.log_in(0, "")
    admission.log_in(1, "")
    with pytest.raises(ConnectionRefused, match=r"connections \(limit 2\)"):
        admission.log_in(2, "")
    admission.disconnect(0)
    admission.log_in(2, "")
