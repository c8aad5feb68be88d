"""The server with one protection of SQL taken out; see ``bench.faults.unprotected``.

Statements are run by a process of their own, which gets its protections taken out by starting this module in its place:
``python -m bench.faults.unprotected_sql PROTECTION``. It ends with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any

import msgspec

from bench.faults.forking import die_with_parent

__all__ = ["no_authorizer", "no_column_names", "no_row_limit", "no_step_limit", "no_view_names"]

_WORKER = "headrace.serve.sql.worker"
_FOR_EVER_S = 3_600.0


def no_authorizer() -> None:
    """A statement may call what it likes; neither the engine nor the kernel keeps it from files."""
    _replace_worker("sql-authorizer")


def no_step_limit() -> None:
    """Nobody stops a statement."""
    from headrace.serve.sql.messages import ToAnswer
    from headrace.serve.sql.pool import SqlPool

    async def answer(self: SqlPool, asked: ToAnswer, token_id: str) -> Any:
        patient = msgspec.structs.replace(asked, time_s=_FOR_EVER_S)
        return await self._ask(patient, _FOR_EVER_S, token_id)

    SqlPool.answer = answer  # type: ignore[method-assign]
    _replace_worker("sql-steps")


def no_row_limit() -> None:
    """An answer has as many rows as it has."""
    from headrace.serve.sql.messages import ToAnswer
    from headrace.serve.sql.pool import SqlPool

    limited = SqlPool.answer

    async def answer(self: SqlPool, asked: ToAnswer, token_id: str) -> Any:
        return await limited(self, msgspec.structs.replace(asked, rows_max=10**9), token_id)

    SqlPool.answer = answer  # type: ignore[method-assign]


def no_view_names() -> None:
    """A statement finds every view, whatever the token may read."""
    from headrace.serve.sql.asking import Asking

    def spelled(self: Asking, name: str) -> str | None:
        return next((one for one in self._served.views.names if one.lower() == name.lower()), None)

    Asking.spelled = spelled  # type: ignore[method-assign]


def no_column_names() -> None:
    """Any text is the name of a column, and becomes SQL as it is."""
    from headrace.model.kinds import Field, Plain
    from headrace.serve import filter as filters
    from headrace.views import sqlite_asking
    from headrace.views.sql_condition import SqlColumn, order_sql, where_sql

    def statement(table: Any, shape: Any, question: Any) -> tuple[str, list[object]]:
        def column(name: str) -> SqlColumn:
            return SqlColumn(name, name, "?")

        where, values = where_sql(question.where, column)
        order = order_sql(question.order, column, nulls=False)
        return f"{table.select} WHERE {where} ORDER BY {order} LIMIT ?", [*values, question.limit + 1]

    vars(filters)["_field"] = lambda shape, name, what: Field(name, Plain("text"), True)
    vars(sqlite_asking)["_statement"] = statement


def _replace_worker(name: str) -> None:
    start = asyncio.create_subprocess_exec

    async def started(program: str, *words: str, **how: Any) -> Any:
        if words[-1] == _WORKER:
            words = ("-m", __name__, name)
            how["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return await start(program, *words, **how)

    vars(asyncio)["create_subprocess_exec"] = started


def _open_up() -> None:
    from headrace.serve.sql import engine, statement

    vars(statement)["_table_function"] = lambda found, node: None
    vars(statement)["_REFUSED_FUNCTIONS"] = set()
    engine._CONFIG["enable_external_access"] = "true"
    vars(engine)["_nothing_opens"] = contextlib.nullcontext


def main(name: str) -> None:
    from headrace.serve.sql import worker

    die_with_parent()
    if name == "sql-authorizer":
        _open_up()
    worker.main()


if __name__ == "__main__":
    main(sys.argv[1])
