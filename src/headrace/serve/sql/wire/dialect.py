"""Translates a statement from PostgreSQL's dialect to DuckDB's. It changes the syntax tree where possible, and the text
only where DuckDB's parser would fail.

The tables of ``catalog.py`` replace those of ``pg_catalog`` and ``information_schema``, macros replace PostgreSQL's
functions, and lookups replace casts such as ``::regclass``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from headrace.serve.sql.wire.catalog import MACROS, REG_TYPES
from headrace.serve.sql.wire.command import split_literals

__all__ = ["set_limit_zero", "translate_text", "translate_tree"]

_WORDS = {"current_catalog", "current_role", "current_user", "session_user", "user"}
"""Functions that PostgreSQL calls without parentheses. The same words in double quotes are column names."""
_NEEDS_TRANSLATION = re.compile(rf"pg_catalog|\b(?:{'|'.join(sorted(_WORDS))})\b", re.I)
_NAME_FOLLOWS = re.compile(r"(?:\.|\bas)\s*$", re.I)
_OUR_SCHEMAS = {"pg_catalog": "pgc", "information_schema": "infos"}
_DUCKDB_NAMES = {"json_build_object": "json_object", "jsonb_build_object": "json_object"}
"""DuckDB's names of PostgreSQL functions."""
_OPERATOR = re.compile(r"OPERATOR\s*\(\s*pg_catalog\s*\.\s*([^\s)\w]+)\s*\)", re.I)
_COLLATE = re.compile(r"COLLATE\s+pg_catalog\.(?:default|C)\b", re.I)
_COLLATES = re.compile(r"COLLATE\s{1,9}pg_catalog\.$", re.I)
_CAST = re.compile(r"::\s*pg_catalog\s*\.\s*", re.I)


def translate_text(sql: str) -> str:
    """Translate the text, except in literals and comments."""
    if not _NEEDS_TRANSLATION.search(sql):
        return sql
    out: list[str] = []
    unquoted = ""
    pieces = [*split_literals(sql), ("", False)]
    for (piece, is_literal), (next_piece, _) in pairwise(pieces):
        if not is_literal:
            is_call = (
                piece.lower() in _WORDS
                and next_piece[:1] not in ("(", ".")
                and not _NAME_FOLLOWS.search(unquoted[-9:])
            )
            unquoted += f"{piece}()" if is_call else piece
        elif piece == '"pg_catalog"' or (piece in ('"default"', '"C"') and _COLLATES.search(unquoted[-40:])):
            unquoted += piece.strip('"')
        else:
            out += [_translate_piece(unquoted), piece]
            unquoted = ""
    return "".join([*out, _translate_piece(unquoted)])


def _translate_piece(unquoted: str) -> str:
    unquoted = _OPERATOR.sub(r"\1", unquoted)
    unquoted = _COLLATE.sub("", unquoted)
    return _CAST.sub("::", unquoted)


def translate_tree(tree: dict[str, Any], *, catalogue: bool) -> bool:
    """Translate the tree in place. Return whether it changed."""
    changed = False
    for node in _nodes(tree):
        kind, name = node.get("type"), str(node.get("function_name", "")).lower()
        for selected in node.get("select_list") or ():
            if str(selected.get("function_name", "")).lower() in MACROS and not selected.get("alias"):
                selected["alias"] = str(selected["function_name"]).lower()
        if kind == "BASE_TABLE":
            changed |= _translate_table(node)
        elif kind == "TABLE_FUNCTION":
            if catalogue and node.get("alias") and not node.get("column_name_alias"):
                # In PostgreSQL, the alias of a table function with one column also names the column.
                node["column_name_alias"], changed = [node["alias"]], True
        elif node.get("class") == "COLUMN_REF":
            names = node.get("column_names") or []
            if len(names) > 2 and str(names[0]).lower() in _OUR_SCHEMAS:
                node["column_names"], changed = [_OUR_SCHEMAS[str(names[0]).lower()], *names[1:]], True
        elif node.get("class") == "FUNCTION":
            if node.get("schema") == "pg_catalog" or name in MACROS:
                node["schema"] = ""
                node["function_name"] = f"pgf_{name}" if name in MACROS else name
                changed = True
            elif name in _DUCKDB_NAMES:
                node["function_name"], changed = _DUCKDB_NAMES[name], True
            elif catalogue and name == "regexp_full_match":
                # DuckDB parses ~ as a full match; in PostgreSQL the pattern matches anywhere in the text.
                node["function_name"], changed = "regexp_matches", True
        elif node.get("class") == "CAST":
            changed |= _translate_cast(node)
    return changed


def set_limit_zero(tree: dict[str, Any]) -> None:
    """Make the statement return the same columns but no rows."""
    node = tree["node"]
    zero = {"type": {"id": "INTEGER", "type_info": None}, "is_null": False, "value": 0}
    limit = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": 0, "value": zero}
    modifiers = [
        modifier for modifier in node["modifiers"] if not str(modifier.get("type")).startswith("LIMIT")
    ]
    node["modifiers"] = [*modifiers, {"type": "LIMIT_MODIFIER", "limit": limit, "offset": None}]


def _translate_table(node: dict[str, Any]) -> bool:
    schema, name = str(node.get("schema_name", "")).lower(), str(node.get("table_name", "")).lower()
    if schema == "information_schema":
        node["schema_name"] = "infos"
    elif schema == "pg_catalog" or (not schema and name.startswith("pg_")):
        node["schema_name"] = "pgc"
    else:
        return False
    return True


def _translate_cast(node: dict[str, Any]) -> bool:
    info = (node.get("cast_type") or {}).get("type_info") or {}
    name = str(info.get("name", "")).lower()
    if name not in REG_TYPES:
        if name in ("name", "cstring", "aclitem", "pg_node_tree"):
            node["cast_type"] = {"id": "VARCHAR", "type_info": None}
            return True
        return False
    child = node["child"]
    is_text = str((child.get("cast_type") or {}).get("id")) == "VARCHAR"
    to_number = child.get("class") in ("CONSTANT", "PARAMETER") or is_text
    return _replace(node, f"pgf_{name}_{'number' if to_number else 'name'}", [child], node.get("alias", ""))


def _replace(node: dict[str, Any], name: str, children: list[Any], alias: str) -> bool:
    function = {
        "class": "FUNCTION", "type": "FUNCTION", "alias": alias, "query_location": 0,
        "function_name": name, "schema": "", "children": children,
        "filter": None, "order_bys": {"type": "ORDER_MODIFIER", "orders": []}, "distinct": False,
        "is_operator": False, "export_state": False, "catalog": "",
    }  # fmt: skip
    node.clear()
    node.update(function)
    return True


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            # Read the children first, because the caller can replace the node.
            children = list(node.values())
            yield node
            pending += children
        elif isinstance(node, list):
            pending += node
