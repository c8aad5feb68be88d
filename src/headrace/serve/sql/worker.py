"""The process that answers statements, one at a time: ``python -m headrace.serve.sql.worker``.

It can be killed at any moment. It ends by itself when the server is gone: its input ends, or, in the midst of a
statement, the kernel's alarm comes. Should memory be taken that the engine does not count, the kernel gives no more.
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
from headrace.serve.pgwire.rows import oid_of, row_bytes
from headrace.serve.problem import problem_of
from headrace.serve.sql.engine import Engine, troubles
from headrace.serve.sql.errors import SqlTooMuch, SqlUnfit
from headrace.serve.sql.messages import (
    LENGTH_BYTES,
    Answered,
    Column,
    Failed,
    Parsed,
    Reply,
    ToAnswer,
    ToParse,
    framed,
    length_of,
    read_request,
)
from headrace.serve.sql.result import arrow_bytes, json_bytes

__all__ = ["main"]

_PARSE_S = 10.0
_PARSE_BYTES = 256 << 20
_ALARM_GRACE_S = 5
_ROOM_BYTES = 384 << 20
"""For the process itself, its threads, and an answer that is being made."""


class Worker:
    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._clock = SystemClock()
        # Reading a statement runs nothing of it, and changes nothing here.
        self._parser = Engine(_PARSE_BYTES)
        self._parser.lock()
        self._at_first = _resident_bytes()

    def answer(self, asked: ToParse | ToAnswer) -> Reply:
        signal.alarm(int(asked.time_s if isinstance(asked, ToAnswer) else _PARSE_S) + _ALARM_GRACE_S)
        try:
            return self._parsed(asked) if isinstance(asked, ToParse) else self._answered(asked)
        except HeadraceError as error:
            status = problem_of(error, "").status
            return Failed(status, error.code, error.message, error.detail, error.hint, error.retriable)
        finally:
            signal.alarm(0)

    def _parsed(self, asked: ToParse) -> Parsed:
        ask = ToAnswer(asked.sql, [], [], _PARSE_S, 0, 0, _PARSE_BYTES)
        with troubles(ask):
            found = self._parser.read(asked.sql, catalogue=asked.catalogue)
        return Parsed(found.names, found.bound, found.words, found.catalogue, found.parameters)

    def _answered(self, ask: ToAnswer) -> Answered:
        _limit_memory(ask.memory_bytes)
        try:
            with (
                contextlib.closing(Engine(ask.memory_bytes)) as engine,
                engine.running(ask, self._clock, self._kept) as ran,
            ):
                types = [kind for _, kind in ran.columns]
                binary = (
                    ask.binary * len(types) if len(ask.binary) == 1 else ask.binary or [False] * len(types)
                )
                if ask.wire and len(binary) != len(types):
                    raise SqlUnfit(f"{len(binary)} forms for {len(types)} columns")
                columns = [Column(name, kind) for name, kind in ran.columns]
                if ask.wire:
                    columns = [
                        Column(name, kind, oid_of(kind, binary=one))
                        for (name, kind), one in zip(ran.columns, binary, strict=True)
                    ]
                    rows, body = row_bytes(ran.reader, types, binary, ask.rows_max, ask.bytes_max)
                elif ask.form == "arrow":
                    rows, body = arrow_bytes(ran.reader, ask.rows_max, ask.bytes_max)
                else:
                    rows, body = json_bytes(ran.reader, types, ask.rows_max, ask.bytes_max)
            return Answered(columns, ran.stood, rows, body, self._is_tired(ask))
        except MemoryError:
            raise SqlTooMuch(
                f"the statement needs more than {ask.memory_bytes >> 20} MiB of memory",
                hint="ask for fewer columns or rows, or raise serve.sql_memory_mb",
            ) from None
        finally:
            _limit_memory(None)

    def _is_tired(self, ask: ToAnswer) -> bool:
        return _resident_bytes() - self._at_first > ask.memory_bytes // 2


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()


def _limit_memory(memory_bytes: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if memory_bytes is None else _data_bytes() + memory_bytes + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def main() -> None:
    # Interrupting the server must not end what it answers: it stops us itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = _pipes()
    # Loaded now: later, when a time is first made, nothing can be opened.
    pa.scalar(0, pa.timestamp("us", tz="UTC")).as_py()
    worker = Worker()
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        sink.write(framed(worker.answer(read_request(source.read(length_of(head))))))
        sink.flush()


def _pipes() -> tuple[BinaryIO, BinaryIO]:
    """Nothing that prints by mistake comes in between."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, sink


if __name__ == "__main__":
    main()
