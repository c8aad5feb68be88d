"""Errors of the engine and of Arrow, while the rows of an answer are read and encoded."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from headrace.clock import SystemClock
from headrace.serve.sql import engine, worker
from headrace.serve.sql.errors import SqlTooLong
from headrace.serve.sql.messages import Failed, ToAnswer
from headrace.serve.sql.worker import Worker


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


def test_running_out_of_memory_while_an_answer_is_encoded_names_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(reader: pa.RecordBatchReader, rows_max: int, bytes_max: int) -> tuple[int, bytes]:
        # Larger than any address space: Arrow's own error, whatever limit this process has.
        pa.allocate_buffer(1 << 62)
        raise AssertionError

    monkeypatch.setattr(engine, "_nothing_opens", contextlib.nullcontext)
    monkeypatch.setattr(worker, "_limit_memory", lambda memory_bytes: None)
    monkeypatch.setattr(worker, "arrow_bytes", encode)
    ask = ToAnswer("SELECT 1", [], [], 60.0, 10_000, 1 << 20, 64 << 20, form="arrow")
    failed = Worker().answer(ask)
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code) == (422, "HR-SERVE-SQL-LIMIT")
    assert "64 MiB" in failed.message
    assert "serve.sql_memory_mb" in failed.hint
