"""The engine's own errors, where they come through Arrow's stream."""

from __future__ import annotations

import contextlib

import pytest

from headrace.clock import SystemClock
from headrace.serve.sql import engine
from headrace.serve.sql.errors import SqlTooLong
from headrace.serve.sql.messages import ToAnswer


def test_a_statement_whose_time_ends_while_its_rows_are_read_is_stopped_with_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This process goes on opening files meanwhile.
    monkeypatch.setattr(engine, "_nothing_opens", contextlib.nullcontext)
    ask = ToAnswer("SELECT * FROM range(10000)", [], [], 60.0, 10_000, 1 << 20, 64 << 20)
    made = engine.Engine(ask.memory_bytes)

    def read() -> None:
        with made.running(ask, SystemClock(), {}) as ran:
            made.connection.interrupt()
            ran.reader.read_all()

    with contextlib.closing(made), pytest.raises(SqlTooLong):
        read()
