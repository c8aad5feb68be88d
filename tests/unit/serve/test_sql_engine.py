"""Errors of DuckDB and Arrow while the rows of a result are read and encoded."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from headrace.clock import SystemClock
from headrace.serve.errors import SqlTimedOut
from headrace.serve.sql import engine, worker
from headrace.serve.sql.messages import Failed, QueryRequest
from headrace.serve.sql.worker import Worker


def test_a_statement_that_times_out_while_its_rows_are_read_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other threads of this process open files meanwhile, so do not forbid it.
    monkeypatch.setattr(engine, "_no_descriptors", contextlib.nullcontext)
    request = QueryRequest("SELECT * FROM range(10000)", [], [], 60.0, 10_000, 1 << 20, 64 << 20)
    sql_engine = engine.Engine(request.memory_bytes)

    def read() -> None:
        with sql_engine.running(request, SystemClock(), {}) as ran:
            sql_engine.connection.interrupt()
            ran.reader.read_all()

    with contextlib.closing(sql_engine), pytest.raises(SqlTimedOut):
        read()


def test_running_out_of_memory_while_a_result_is_encoded_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(reader: pa.RecordBatchReader, rows_max: int, bytes_max: int) -> tuple[int, bytes]:
        # Larger than any address space: Arrow's own error, whatever limit this process has.
        pa.allocate_buffer(1 << 62)
        raise AssertionError

    monkeypatch.setattr(engine, "_no_descriptors", contextlib.nullcontext)
    monkeypatch.setattr(worker, "_limit_memory", lambda memory_bytes: None)
    monkeypatch.setattr(worker, "arrow_bytes", encode)
    request = QueryRequest("SELECT 1", [], [], 60.0, 10_000, 1 << 20, 64 << 20, result_format="arrow")
    failed = Worker().answer(request)
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code) == (422, "HR-SERVE-SQL-LIMIT")
    assert "64 MiB" in failed.message
    assert "serve.sql_memory_mb" in failed.hint
