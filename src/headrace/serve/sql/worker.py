"""A SQL worker process, which runs one statement at a time: ``python -m headrace.serve.sql.worker``.

The server can kill the process at any time. If the server dies, the process exits too: its input ends, or, during a
statement, the kernel's alarm ends it. The kernel limits the memory that DuckDB does not count.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.clock import SystemClock
from headrace.errors import HeadraceError
from headrace.serve.errors import SqlInvalid, SqlLimitExceeded
from headrace.serve.http.problem import problem_of
from headrace.serve.sql.engine import Engine, translate_errors
from headrace.serve.sql.messages import (
    LENGTH_BYTES,
    Column,
    Failed,
    Parsed,
    ParseRequest,
    QueryRequest,
    QueryResponse,
    Reply,
    decode_length,
    decode_request,
    encode_frame,
)
from headrace.serve.sql.result import arrow_bytes, json_bytes
from headrace.serve.sql.wire.rows import oid_of, row_bytes

__all__ = ["main"]

_PARSE_S = 10.0
_PARSE_BYTES = 256 << 20
_ALARM_GRACE_S = 5
_OVERHEAD_BYTES = 384 << 20
"""Memory for the process itself, its threads, and the response."""


class Worker:
    def __init__(self) -> None:
        self._connections: dict[tuple[str, str], Any] = {}
        self._clock = SystemClock()
        # One engine can parse all statements, because parsing does not change it.
        self._parser = Engine(_PARSE_BYTES)
        self._parser.lock()
        self._initial_resident_bytes = _resident_bytes()

    def answer(self, request: ParseRequest | QueryRequest) -> Reply:
        signal.alarm(int(request.time_s if isinstance(request, QueryRequest) else _PARSE_S) + _ALARM_GRACE_S)
        try:
            return self._parse(request) if isinstance(request, ParseRequest) else self._query(request)
        except HeadraceError as error:
            status = problem_of(error, "").status
            return Failed(status, error.code, error.message, error.detail, error.hint, error.retriable)
        finally:
            signal.alarm(0)

    def _parse(self, request: ParseRequest) -> Parsed:
        limits = QueryRequest(request.sql, [], [], _PARSE_S, 0, 0, _PARSE_BYTES)
        with translate_errors(limits):
            parsed = self._parser.parse(request.sql, catalogue=request.catalogue)
        return Parsed(parsed.names, parsed.bound, parsed.words, parsed.catalogue, parsed.parameters)

    def _query(self, request: QueryRequest) -> QueryResponse:
        _limit_memory(request.memory_bytes)
        try:
            with (
                contextlib.closing(Engine(request.memory_bytes)) as engine,
                engine.running(request, self._clock, self._connections) as execution,
            ):
                types = [kind for _, kind in execution.columns]
                binary = (
                    request.binary * len(types)
                    if len(request.binary) == 1
                    else request.binary or [False] * len(types)
                )
                if request.is_pgwire and len(binary) != len(types):
                    raise SqlInvalid(f"the client sent {len(binary)} result formats for {len(types)} columns")
                columns = [Column(name, kind) for name, kind in execution.columns]
                if request.is_pgwire:
                    columns = [
                        Column(name, kind, oid_of(kind, binary=is_binary))
                        for (name, kind), is_binary in zip(execution.columns, binary, strict=True)
                    ]
                    rows, body = row_bytes(
                        execution.reader, types, binary, request.rows_max, request.bytes_max
                    )
                elif request.result_format == "arrow":
                    rows, body = arrow_bytes(execution.reader, request.rows_max, request.bytes_max)
                else:
                    rows, body = json_bytes(execution.reader, types, request.rows_max, request.bytes_max)
            return QueryResponse(columns, execution.positions, rows, body, self._must_restart(request))
        except MemoryError:
            raise SqlLimitExceeded(
                f"the statement needs more than {request.memory_bytes >> 20} MiB of memory",
                hint="select fewer columns or rows, or raise serve.sql_memory_mb",
            ) from None
        finally:
            _limit_memory(None)

    def _must_restart(self, request: QueryRequest) -> bool:
        return _resident_bytes() - self._initial_resident_bytes > request.memory_bytes // 2


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()


def _limit_memory(memory_bytes: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if memory_bytes is None else _data_bytes() + memory_bytes + _OVERHEAD_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def main() -> None:
    # Ignore Ctrl-C, because the server stops this process itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = _pipes()
    # Load time zones now: while a statement runs, the process cannot open files.
    pa.scalar(0, pa.timestamp("us", tz="UTC")).as_py()
    worker = Worker()
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        sink.write(encode_frame(worker.answer(decode_request(source.read(decode_length(head))))))
        sink.flush()


def _pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the input and output for messages. Redirect stdout to stderr, so that prints do not mix with messages."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, sink


if __name__ == "__main__":
    main()
