"""A statement, read by the very parser that will run it: one SELECT, the tables that it names, and nothing that reaches
outside.

This is the first of three walls. The second is the engine's own: no files, no network, no extensions, no settings
(``headrace.serve.sql.engine``). The third is the kernel's: while a statement runs the process can open nothing. And
what is behind all of them is a copy, which goes when the answer is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.serve.sql.errors import SqlRefused, SqlTooMuch, SqlUnfit
from headrace.serve.sql.messages import Words

__all__ = ["CATALOGUES", "SCHEMAS", "Statement", "expect_short", "read_statement"]

_SQL_BYTES_MAX = 100_000
SCHEMAS = ("", "public")
"""Where the views are, for a statement."""
CATALOGUES = ("pg_catalog", "information_schema")
SEARCH = "search"
_TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "generate_subscripts"}
_REFUSED_FUNCTIONS = {
    "currval",
    "current_query",
    "getenv",
    "getvariable",
    "nextval",
    "parse_duckdb_log_message",
    "pg_sleep",
    "query",
    "query_table",
    "sleep_ms",
    "write_log",
}
_READ = "SELECT json_serialize_sql(?::VARCHAR)"


@dataclass(slots=True)
class Statement:
    tree: dict[str, Any]
    names: list[str] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)
    parameters: int = 0
    catalogue: bool = False
    tables: list[dict[str, Any]] = field(default_factory=list)
    """Nodes of the tree that are tables."""
    searches: list[dict[str, Any]] = field(default_factory=list)


def expect_short(sql: str) -> None:
    size = len(sql.encode("utf-8", "surrogatepass"))
    if size > _SQL_BYTES_MAX:
        raise SqlTooMuch(
            f"the SQL text has {size} bytes (limit {_SQL_BYTES_MAX})",
            hint="pass long values as parameters",
        )


def read_statement(connection: Any, sql: str, *, catalogue: bool = False) -> Statement:
    """``catalogue`` where the system's tables may be asked for."""
    expect_short(sql)
    if "\0" in sql:
        raise SqlUnfit("a statement has no NUL in it")
    try:
        told = msgspec.json.decode(connection.execute(_READ, [sql]).fetchone()[0])
    except RecursionError:
        raise SqlRefused("the statement is nested too deeply") from None
    if told["error"]:
        message = str(told.get("error_message", ""))
        if "Only SELECT" in message or "needs a SELECT" in message:
            raise _only_select()
        raise SqlUnfit(f"the statement cannot be read: {message[:500]}")
    if len(told["statements"]) != 1:
        raise SqlRefused(f"one statement at a time, and these are {len(told['statements'])}")
    return _looked_through(told["statements"][0], catalogue)


def _looked_through(tree: dict[str, Any], catalogue: bool) -> Statement:
    found = Statement(tree)
    numbers: set[str] = set()
    for node in _nodes(tree):
        kind = node.get("type")
        if "cte_map" in node:
            found.bound += [str(one["key"]) for one in node["cte_map"].get("map", ())]
        if kind == "BASE_TABLE":
            _table(found, node, catalogue)
        elif kind == "TABLE_FUNCTION":
            _table_function(found, node)
        elif kind == "SHOW_REF":
            raise SqlRefused(
                "SHOW, DESCRIBE and SUMMARIZE are not answered", hint="GET /v1/views/{view} has the columns"
            )
        elif node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in _REFUSED_FUNCTIONS:
            raise SqlRefused(f"the function {node['function_name']} is not for statements here")
        elif node.get("class") == "PARAMETER":
            numbers.add(str(node.get("identifier")))
    found.parameters = len(numbers)
    return found


def _table(found: Statement, node: dict[str, Any], catalogue: bool) -> None:
    name = str(node.get("table_name", ""))
    schema = str(node.get("schema_name", "")).lower()
    if schema in CATALOGUES or (catalogue and not schema and name.lower().startswith("pg_")):
        if not catalogue:
            raise SqlRefused(
                f"the system's tables are not shown: {schema}.{name[:80]}", hint="GET /v1/views has the views"
            )
        found.catalogue = True
        found.tables.append(node)
        return
    if schema not in SCHEMAS or node.get("catalog_name"):
        raise SqlRefused(f"there is no schema {schema[:80]!r}: views are in public")
    found.tables.append(node)
    if name not in found.names:
        found.names.append(name)


def _table_function(found: Statement, node: dict[str, Any]) -> None:
    function = node.get("function", {})
    name = str(function.get("function_name", "")).lower()
    if name in _TABLE_FUNCTIONS:
        return
    if name != SEARCH:
        raise SqlRefused(
            f"{name[:80]}() gives no table here",
            hint=f"views do, and {', '.join(sorted(_TABLE_FUNCTIONS))}, and search('view', 'words')",
        )
    given = [(one.get("value") or {}).get("value") for one in function.get("children", ())]
    texts = [one for one in given if isinstance(one, str) and one]
    if len(given) != 2 or len(texts) != 2:
        raise SqlUnfit("search takes the name of a view and words, both as texts: search('view', 'words')")
    one = Words(texts[0], texts[1])
    if one not in found.words:
        found.words.append(one)
    found.searches.append(node)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _only_select() -> SqlRefused:
    return SqlRefused(
        "only SELECT is answered: nothing can be written, set or loaded here",
        hint="views change by what is written to the log: POST /v1/topics/{topic}/records",
    )
