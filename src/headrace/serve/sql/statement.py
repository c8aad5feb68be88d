"""Parses a statement with DuckDB's parser. Accepts only one SELECT that reads views and safe functions.

This is the first of three protections. The second is DuckDB's configuration: no files, network, extensions or settings
(``engine.py``). The third is the kernel: while a statement runs, the process cannot open a file or socket. The
statement sees only copies of rows, which are dropped afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.serve.errors import SqlInvalid, SqlLimitExceeded, SqlRefused
from headrace.serve.sql.messages import TableRef

__all__ = ["CATALOGUES", "SCHEMAS", "ParsedStatement", "check_length", "parse_statement"]

_SQL_BYTES_MAX = 100_000
SCHEMAS = ("", "public")
"""The schemas in which a statement finds the views."""
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
_SQL_TO_TREE = "SELECT json_serialize_sql(?::VARCHAR)"


@dataclass(slots=True)
class ParsedStatement:
    tree: dict[str, Any]
    names: list[str] = field(default_factory=list)
    bound: list[str] = field(default_factory=list)
    words: list[TableRef] = field(default_factory=list)
    parameters: int = 0
    catalogue: bool = False
    tables: list[dict[str, Any]] = field(default_factory=list)
    """The nodes of the tree that are tables."""
    searches: list[dict[str, Any]] = field(default_factory=list)


def check_length(sql: str) -> None:
    size = len(sql.encode("utf-8", "surrogatepass"))
    if size > _SQL_BYTES_MAX:
        raise SqlLimitExceeded(
            f"the SQL text has {size} bytes (limit {_SQL_BYTES_MAX})",
            hint="pass long values as parameters",
        )


def parse_statement(connection: Any, sql: str, *, catalogue: bool = False) -> ParsedStatement:
    """Parse a statement. ``catalogue`` allows the system tables."""
    check_length(sql)
    if "\0" in sql:
        raise SqlInvalid("a statement cannot contain a NUL character")
    try:
        parsed = msgspec.json.decode(connection.execute(_SQL_TO_TREE, [sql]).fetchone()[0])
    except RecursionError:
        raise SqlRefused("the statement is nested too deeply") from None
    except msgspec.DecodeError:
        # DuckDB reads 1e999 as infinity, which JSON cannot express.
        raise SqlInvalid(
            "the statement has a number that is too large for any type",
            hint="write infinity as 'Infinity'::DOUBLE",
        ) from None
    if parsed["error"]:
        message = str(parsed.get("error_message", ""))
        if "Only SELECT" in message or "needs a SELECT" in message:
            raise _only_select()
        raise SqlInvalid(f"syntax error: {message[:500]}")
    if len(parsed["statements"]) != 1:
        raise SqlRefused(f"only one statement is allowed, not {len(parsed['statements'])}")
    return _check(parsed["statements"][0], catalogue)


def _check(tree: dict[str, Any], catalogue: bool) -> ParsedStatement:
    statement = ParsedStatement(tree)
    numbers: set[str] = set()
    for node in _nodes(tree):
        kind = node.get("type")
        if "cte_map" in node:
            statement.bound += [str(entry["key"]) for entry in node["cte_map"].get("map", ())]
        if kind == "BASE_TABLE":
            _table(statement, node, catalogue)
        elif kind == "TABLE_FUNCTION":
            _table_function(statement, node)
        elif kind == "SHOW_REF":
            raise SqlRefused(
                "SHOW, DESCRIBE and SUMMARIZE are not supported",
                hint="read the columns: GET /v1/views/{view}",
            )
        elif node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in _REFUSED_FUNCTIONS:
            raise SqlRefused(f"the function {node['function_name']} is not allowed")
        elif node.get("class") == "PARAMETER":
            numbers.add(str(node.get("identifier")))
    statement.parameters = len(numbers)
    return statement


def _table(statement: ParsedStatement, node: dict[str, Any], catalogue: bool) -> None:
    name = str(node.get("table_name", ""))
    schema = str(node.get("schema_name", "")).lower()
    if schema in CATALOGUES or (catalogue and not schema and name.lower().startswith("pg_")):
        if not catalogue:
            raise SqlRefused(
                f"system tables are not available over HTTP: {schema}.{name[:80]}",
                hint="list the views: GET /v1/views",
            )
        statement.catalogue = True
        statement.tables.append(node)
        return
    if schema not in SCHEMAS or node.get("catalog_name"):
        raise SqlRefused(f"schema {schema[:80]!r} does not exist: the views are in the schema public")
    statement.tables.append(node)
    if name not in statement.names:
        statement.names.append(name)


def _table_function(statement: ParsedStatement, node: dict[str, Any]) -> None:
    function = node.get("function", {})
    name = str(function.get("function_name", "")).lower()
    if name in _TABLE_FUNCTIONS:
        return
    if name != SEARCH:
        raise SqlRefused(
            f"the table function {name[:80]}() is not allowed",
            hint=f"use views, {', '.join(sorted(_TABLE_FUNCTIONS))}, or search('view', 'words')",
        )
    arguments = [(child.get("value") or {}).get("value") for child in function.get("children", ())]
    texts = [text for text in arguments if isinstance(text, str) and text]
    if len(arguments) != 2 or len(texts) != 2:
        raise SqlInvalid("search needs a view name and words, both as text literals: search('view', 'words')")
    search = TableRef(texts[0], texts[1])
    if search not in statement.words:
        statement.words.append(search)
    statement.searches.append(node)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def _only_select() -> SqlRefused:
    return SqlRefused(
        "only SELECT is allowed: a statement cannot write, set or load anything",
        hint="to change a view, write records to the log: POST /v1/topics/{topic}/records",
    )
