"""The server with one protection of SQL removed; see ``faults.unprotected.registry``.

The server runs SQL statements in a separate process. This module replaces the program of that process, without the
protection: ``python -m faults.unprotected.sql PROTECTION``. It exits with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from typing import Any

import msgspec

from faults.patch import patch
from faults.servers.fork_server import die_with_parent

__all__ = ["no_authorizer", "no_column_names", "no_row_limit", "no_step_limit", "no_view_names"]

_WORKER = "headrace.serve.sql.worker"
_UNLIMITED_S = 3_600.0


def no_authorizer() -> None:
    """A statement can call any function, and neither the engine nor the kernel denies access to files."""
    _replace_worker("sql-authorizer")


def no_step_limit() -> None:
    """A statement runs without a time limit."""
    from headrace.serve.sql.messages import QueryRequest
    from headrace.serve.sql.pool import SqlPool

    async def answer(self: SqlPool, request: QueryRequest, token_id: str) -> Any:
        unlimited = msgspec.structs.replace(request, time_s=_UNLIMITED_S)
        return await self._request(unlimited, _UNLIMITED_S, token_id)

    patch(SqlPool, "answer", answer)
    _replace_worker("sql-steps")


def no_row_limit() -> None:
    """A result has no row limit."""
    from headrace.serve.sql.messages import QueryRequest
    from headrace.serve.sql.pool import SqlPool

    limited = SqlPool.answer

    async def answer(self: SqlPool, request: QueryRequest, token_id: str) -> Any:
        return await limited(self, msgspec.structs.replace(request, rows_max=10**9), token_id)

    patch(SqlPool, "answer", answer)


def no_view_names() -> None:
    """A statement finds every view, whatever the token may read."""
    from headrace.serve.sql.service import SqlService

    def find_name(self: SqlService, caller: Any, name: str) -> str | None:
        return next((view for view in self._views.names if view.lower() == name.lower()), None)

    patch(SqlService, "find_name", find_name)


def no_column_names() -> None:
    """Any text is accepted as a column name, and is inserted into the SQL unchanged."""
    from headrace.model.kinds import Field, Scalar
    from headrace.serve.query import filter as filters
    from headrace.stores.sql_condition import SqlColumn, order_sql, where_sql
    from headrace.stores.sqlite import reader as sqlite_reader

    def statement(table: Any, schema: Any, query: Any) -> tuple[str, list[object]]:
        if query.key is not None:
            return table.select_one, [*query.key]

        def column(name: str) -> SqlColumn:
            return SqlColumn(name, name, "?")

        where, values = where_sql(query.where, column)
        order = order_sql(query.order, column, nulls=False)
        return f"{table.select} WHERE {where} ORDER BY {order} LIMIT ?", [*values, query.limit + 1]

    patch(filters, "_field", lambda schema, name, parameter: Field(name, Scalar("text"), True))
    patch(sqlite_reader, "_statement", statement)


def _replace_worker(name: str) -> None:
    assert importlib.util.find_spec(_WORKER), _WORKER
    create = asyncio.create_subprocess_exec

    async def create_replacement(program: str, *arguments: str, **options: Any) -> Any:
        if arguments == ("-m", _WORKER):
            arguments = ("-m", __name__, name)
            options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return await create(program, *arguments, **options)

    patch(asyncio, "create_subprocess_exec", create_replacement)


def _allow_files_and_functions() -> None:
    from headrace.serve.sql import engine, statement

    patch(statement, "_table_function", lambda statement, node: None)
    patch(statement, "_REFUSED_FUNCTIONS", set())
    patch(engine, "_CONFIG", {**engine._CONFIG, "enable_external_access": "true"})
    patch(engine, "_no_descriptors", contextlib.nullcontext)


def main(protection: str) -> None:
    from headrace.serve.sql import worker

    die_with_parent()
    if protection == "sql-authorizer":
        _allow_files_and_functions()
    worker.main()


if __name__ == "__main__":
    main(sys.argv[1])
