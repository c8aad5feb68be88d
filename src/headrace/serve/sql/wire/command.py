"""Parses the statements that do not need DuckDB: transactions, settings, cursors. Also splits a text into statements.

All statements are read-only, so BEGIN and COMMIT change only the transaction status. SET is accepted for settings that
have no effect here, for settings that already have the value, and for Headrace's own:

    headrace.after       a position token: results reflect at least this position
    headrace.wait        how long to wait for that position, such as ``2s``

SHOW also returns:

    headrace.position    the position token of the last statement
    headrace.positions   the position of each view that the last statement read, as JSON

A cursor only moves forward. Its first FETCH reads all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.serve.sql.wire.catalog import SETTINGS

__all__ = [
    "AFTER",
    "POSITION",
    "POSITIONS",
    "WAIT",
    "Command",
    "DeclareCursor",
    "FetchCursor",
    "name_of",
    "parse_command",
    "parse_declare",
    "parse_fetch",
    "split_literals",
    "split_statements",
    "strip_comments",
]

AFTER, WAIT = "headrace.after", "headrace.wait"
POSITION, POSITIONS = "headrace.position", "headrace.positions"
_NAME = r'"(?:[^"]|"")+"|[A-Za-z_][\w$]*'
_DECLARE = re.compile(
    rf"declare\s+({_NAME})\s+((?:(?:binary|insensitive|asensitive|no\s+scroll|scroll)\s+)*)cursor\s+"
    r"(?:(with|without)\s+hold\s+)?for\s+(.*)",
    re.I | re.S,
)
_FETCH = re.compile(
    rf"(?:fetch|move)\s+(?:(next|(?:forward\s+)?all|(?:forward\s+)?[0-9]{{1,9}}|forward)\s+)?(?:(?:from|in)\s+)?({_NAME})",
    re.I,
)
_TRANSACTION = {
    "begin": ("BEGIN", b"T"),
    "start": ("START TRANSACTION", b"T"),
    "commit": ("COMMIT", b"I"),
    "end": ("COMMIT", b"I"),
    "rollback": ("ROLLBACK", b"I"),
    "abort": ("ROLLBACK", b"I"),
}
_NO_EFFECT = {"savepoint": "SAVEPOINT", "release": "RELEASE", "unlisten": "UNLISTEN"}
_IGNORED_SETTINGS = {
    "application_name", "bytea_output", "client_min_messages", "datestyle", "extra_float_digits", "intervalstyle",
    "jit", "lock_timeout", "search_path", "session", "statement_timeout", "transaction",
    "idle_in_transaction_session_timeout",
    "default_transaction_isolation", "default_transaction_read_only", "standard_conforming_strings",
}  # fmt: skip
_SET = re.compile(r"set\s+(?:session\s+|local\s+)?(time\s+zone|[a-z_.]+)\s*(?:=|to\b)?\s*(.*)", re.I | re.S)
_SHOW = re.compile(r"show\s+(transaction\s+isolation\s+level|time\s+zone|[a-z_.]+)", re.I)
_CLOSE = re.compile(rf"(?:close|deallocate)\s+(?:prepare\s+)?({_NAME})", re.I)


@dataclass(frozen=True, slots=True)
class DeclareCursor:
    name: str
    sql: str
    binary: bool
    hold: bool
    """Whether the cursor survives its transaction."""


@dataclass(frozen=True, slots=True)
class FetchCursor:
    name: str
    rows_max: int
    """0 means all remaining rows."""
    moves: bool
    """Whether to skip the rows instead of sending them (MOVE)."""


@dataclass(frozen=True, slots=True)
class Command:
    tag: str
    status: bytes = b""
    """The new transaction status. If empty, the status is unchanged."""
    shown_setting: tuple[str, str] | None = None
    """Name and value that SHOW returns."""
    setting: tuple[str, str] | None = None
    """One of Headrace's settings and its new value."""
    drops: tuple[str, str] | None = None
    """The kind and name of what to drop. The kind is ``cursor`` or ``statement``; an empty name means all of the kind.
    """
    declared: DeclareCursor | None = None
    fetched: FetchCursor | None = None
    pg_error: tuple[str, str] | None = None
    """SQLSTATE and message."""


def parse_command(sql: str, settings: Mapping[str, str]) -> Command | None:
    """Return None for a statement that DuckDB runs. ``settings`` are the connection's values of Headrace's settings."""
    text = strip_comments(sql)
    word = re.match(r"[a-zA-Z]*", text)
    first = word[0].lower() if word else ""
    if first in _TRANSACTION:
        if first == "rollback" and re.match(r"rollback\s+to\b", text, re.I):
            return Command("ROLLBACK", b"T")
        return Command(*_TRANSACTION[first])
    match first:
        case "set":
            return _set(text)
        case "show":
            return _show(text, settings)
        case "reset":
            name = text[5:].strip().lower()
            return Command("RESET", setting=(name, "") if name in (AFTER, WAIT) else None)
        case "discard":
            return Command("DISCARD ALL", drops=("statement", ""))
        case "deallocate" | "close":
            return _drop(text, first)
        case "declare":
            cursor = parse_declare(text)
            return Command("DECLARE CURSOR", declared=cursor) if cursor else None
        case "fetch" | "move":
            return _fetch(text, first.upper())
    return Command(_NO_EFFECT[first]) if first in _NO_EFFECT else None


def _drop(text: str, first: str) -> Command:
    tag, kind = ("CLOSE CURSOR", "cursor") if first == "close" else ("DEALLOCATE", "statement")
    match = _CLOSE.fullmatch(text)
    if match is None:
        return Command("", pg_error=("42601", f"{first.upper()} needs one name, or ALL"))
    return Command(tag, drops=(kind, "" if match[1].lower() == "all" else name_of(match[1])))


def _fetch(text: str, tag: str) -> Command:
    fetch = parse_fetch(text)
    if fetch is None:
        return Command("", pg_error=("0A000", f"{tag} can only move forward: {tag} FORWARD 100 FROM name"))
    return Command(tag, fetched=fetch)


def _set(text: str) -> Command:
    match = _SET.fullmatch(text)
    name = " ".join(match[1].lower().split()) if match else ""
    value = match[2].strip() if match else ""
    value = value[1:-1].replace("''", "'") if len(value) > 1 and value[0] == value[-1] == "'" else value
    if name in (AFTER, WAIT):
        return Command("SET", setting=(name, "" if value.lower() == "default" else value))
    if name in _IGNORED_SETTINGS:
        return Command("SET")
    value = value.strip("'\"").lower()
    if (name in ("timezone", "time zone") and value in ("utc", "etc/utc", "gmt", "z", "0", "default")) or (
        name in ("client_encoding", "names") and value.replace("-", "") in ("utf8", "unicode")
    ):
        return Command("SET")
    return Command("", pg_error=("0A000", f"{name or 'this'} cannot be set: the server is read-only"))


def _show(text: str, settings: Mapping[str, str]) -> Command:
    match = _SHOW.fullmatch(text)
    name = "_".join(match[1].lower().split()) if match else ""
    name = {"transaction_isolation_level": "transaction_isolation", "time_zone": "timezone"}.get(name, name)
    for setting, value in (*settings.items(), *SETTINGS.items()):
        if setting.lower() == name:
            return Command("SHOW", shown_setting=(setting, value))
    return Command("", pg_error=("42704", f"setting {name or text[:80]!r} does not exist"))


_TAG = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$")
_UNQUOTED = re.compile(r"[^'\"$;/\-\w]+|\w[\w$]*")
_SPACE = re.compile(r"\s*")
_ESCAPED = re.compile(r"(?:[^'\\]|\\.|'')*'?", re.S)
_QUOTES = ("'", '"')


def split_literals(text: str) -> Iterator[tuple[str, bool]]:
    """Split the text. Yield each piece, and whether it is a literal, a quoted name or a comment."""
    at = 0
    while at < len(text):
        end, is_literal = _end_of(text, at)
        yield text[at:end], is_literal
        at = end


def _end_of(text: str, at: int) -> tuple[int, bool]:
    letter = text[at]
    if letter in _QUOTES:
        return _quoted_end(text, at + 1, letter), True
    if letter in "eE" and text[at + 1 : at + 2] == "'":
        match = _ESCAPED.match(text, at + 2)
        return match.end() if match else len(text), True
    if letter == "$" and (tag := _TAG.match(text, at)):
        return _end_after(text, tag[0], tag.end()), True
    if text.startswith("--", at):
        end = text.find("\n", at)
        return (len(text) if end < 0 else end + 1), True
    if text.startswith("/*", at):
        return _end_after(text, "*/", at + 2), True
    unquoted = _UNQUOTED.match(text, at)
    return (unquoted.end() if unquoted else at + 1), False


def _quoted_end(text: str, at: int, quote: str) -> int:
    while (end := text.find(quote, at)) >= 0:
        if not text.startswith(quote, end + 1):
            return end + 1
        at = end + 2
    return len(text)


def _end_after(text: str, terminator: str, at: int) -> int:
    end = text.find(terminator, at)
    return len(text) if end < 0 else end + len(terminator)


def split_statements(text: str) -> Iterator[str]:
    """Split a simple query, which can contain several statements separated by semicolons."""
    statement: list[str] = []
    for piece, is_literal in split_literals(text):
        if piece == ";" and not is_literal:
            yield "".join(statement)
            statement = []
        else:
            statement.append(piece)
    yield "".join(statement)


def strip_comments(sql: str) -> str:
    """Remove comments before the statement, and whitespace and semicolons around it.

    A comment without its end stays, and the engine refuses it.
    """
    at = 0
    while True:
        space = _SPACE.match(sql, at)
        at = space.end() if space else at
        is_comment = sql.startswith("--", at) or (sql.startswith("/*", at) and sql.find("*/", at + 2) >= 0)
        if not is_comment:
            return sql[at:].strip().rstrip(";").strip()
        at = _end_of(sql, at)[0]


def parse_declare(text: str) -> DeclareCursor | None:
    """Return None if the text is not a DECLARE statement."""
    match = _DECLARE.fullmatch(text)
    if match is None:
        return None
    return DeclareCursor(
        name_of(match[1]), match[4], "binary" in match[2].lower(), (match[3] or "").lower() == "with"
    )


def parse_fetch(text: str) -> FetchCursor | None:
    """Return None if the text is not FETCH or MOVE, or does not move forward."""
    match = _FETCH.fullmatch(text)
    if match is None:
        return None
    amount = (match[1] or "next").lower().split()[-1]
    rows = {"next": 1, "forward": 1, "all": 0}.get(amount)
    if rows is None:
        rows = int(amount)
        if rows == 0:
            return None
    moves = text[:4].lower() == "move"
    return None if moves and rows == 0 else FetchCursor(name_of(match[2]), rows, moves)


def name_of(identifier: str) -> str:
    if identifier.startswith('"'):
        return identifier[1:-1].replace('""', '"')
    return identifier.lower()
