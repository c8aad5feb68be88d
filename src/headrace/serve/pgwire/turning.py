"""A statement as clients of PostgreSQL write it, turned into what the engine knows: in its tree, and in its text only
what the engine's parser would not take.

Tables of ``pg_catalog`` and ``information_schema`` become ours, functions of PostgreSQL macros, ``::regclass`` and its
like lookups (``headrace.serve.pgwire.catalogue``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from headrace.serve.pgwire.catalogue_tables import MACROS, REGISTERS
from headrace.serve.pgwire.splitting import pieces_of

__all__ = ["turn", "turned_text", "without_rows"]

_WORDS = {"current_catalog", "current_role", "current_user", "session_user", "user"}
"""Functions that are called without parentheses; in double quotes they are names of columns."""
_TOLD = re.compile(rf"pg_catalog|\b(?:{'|'.join(sorted(_WORDS))})\b", re.I)
_NAMES = re.compile(r"(?:\.|\bas)\s*$", re.I)
_OURS = {"pg_catalog": "pgc", "information_schema": "infos"}
_SPELLED = {"json_build_object": "json_object", "jsonb_build_object": "json_object"}
"""Functions that the engine has by another name."""
_OPERATOR = re.compile(r"OPERATOR\s*\(\s*pg_catalog\s*\.\s*([^\s)\w]+)\s*\)", re.I)
_COLLATE = re.compile(r"COLLATE\s+pg_catalog\.(?:default|C)\b", re.I)
_COLLATES = re.compile(r"COLLATE\s{1,9}pg_catalog\.$", re.I)
_CAST = re.compile(r"::\s*pg_catalog\s*\.\s*", re.I)


def turned_text(sql: str) -> str:
    """Only where it is neither a literal nor a comment."""
    if not _TOLD.search(sql):
        return sql
    out: list[str] = []
    plain = ""
    pieces = [*pieces_of(sql), ("", False)]
    for (piece, closed), (behind, _) in pairwise(pieces):
        if not closed:
            calls = piece.lower() in _WORDS and behind[:1] not in ("(", ".") and not _NAMES.search(plain[-9:])
            plain += f"{piece}()" if calls else piece
        elif piece == '"pg_catalog"' or (piece in ('"default"', '"C"') and _COLLATES.search(plain[-40:])):
            plain += piece.strip('"')
        else:
            out += [_turned_piece(plain), piece]
            plain = ""
    return "".join([*out, _turned_piece(plain)])


def _turned_piece(plain: str) -> str:
    plain = _OPERATOR.sub(r"\1", plain)
    plain = _COLLATE.sub("", plain)
    return _CAST.sub("::", plain)


def turn(tree: dict[str, Any], *, catalogue: bool) -> bool:
    """Whether anything was changed."""
    changed = False
    for node in _nodes(tree):
        kind, name = node.get("type"), str(node.get("function_name", "")).lower()
        for one in node.get("select_list") or ():
            if str(one.get("function_name", "")).lower() in MACROS and not one.get("alias"):
                one["alias"] = str(one["function_name"]).lower()
        if kind == "BASE_TABLE":
            changed |= _turn_table(node)
        elif kind == "TABLE_FUNCTION":
            if catalogue and node.get("alias") and not node.get("column_name_alias"):
                # The name of what has one column is that column's too.
                node["column_name_alias"], changed = [node["alias"]], True
        elif node.get("class") == "COLUMN_REF":
            names = node.get("column_names") or []
            if len(names) > 2 and str(names[0]).lower() in _OURS:
                node["column_names"], changed = [_OURS[str(names[0]).lower()], *names[1:]], True
        elif node.get("class") == "FUNCTION":
            if node.get("schema") == "pg_catalog" or name in MACROS:
                node["schema"] = ""
                node["function_name"] = f"pgf_{name}" if name in MACROS else name
                changed = True
            elif name in _SPELLED:
                node["function_name"], changed = _SPELLED[name], True
            elif catalogue and name == "regexp_full_match":
                # In PostgreSQL a pattern may match anywhere.
                node["function_name"], changed = "regexp_matches", True
        elif node.get("class") == "CAST":
            changed |= _turn_cast(node)
    return changed


def without_rows(tree: dict[str, Any]) -> None:
    """The columns stay as they are."""
    node = tree["node"]
    none = {"type": {"id": "INTEGER", "type_info": None}, "is_null": False, "value": 0}
    limit = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": 0, "value": none}
    kept = [one for one in node["modifiers"] if not str(one.get("type")).startswith("LIMIT")]
    node["modifiers"] = [*kept, {"type": "LIMIT_MODIFIER", "limit": limit, "offset": None}]


def _turn_table(node: dict[str, Any]) -> bool:
    schema, name = str(node.get("schema_name", "")).lower(), str(node.get("table_name", "")).lower()
    if schema == "information_schema":
        node["schema_name"] = "infos"
    elif schema == "pg_catalog" or (not schema and name.startswith("pg_")):
        node["schema_name"] = "pgc"
    else:
        return False
    return True


def _turn_cast(node: dict[str, Any]) -> bool:
    told = (node.get("cast_type") or {}).get("type_info") or {}
    name = str(told.get("name", "")).lower()
    if name not in REGISTERS:
        if name in ("name", "cstring", "aclitem", "pg_node_tree"):
            node["cast_type"] = {"id": "VARCHAR", "type_info": None}
            return True
        return False
    child = node["child"]
    texts = str((child.get("cast_type") or {}).get("id")) == "VARCHAR"
    to_number = child.get("class") in ("CONSTANT", "PARAMETER") or texts
    return _become(node, f"pgf_{name}_{'number' if to_number else 'name'}", [child], node.get("alias", ""))


def _become(node: dict[str, Any], name: str, children: list[Any], alias: str) -> bool:
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
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            # What is below is looked at even where the node itself is turned.
            below = list(node.values())
            yield node
            waiting += below
        elif isinstance(node, list):
            waiting += node
