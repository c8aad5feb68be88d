"""Filters, sorts, keys and cursors over HTTP that contain SQL, each with the expected error code.

An empty code means success. ``rows`` is then ``all`` or ``none``: the rows that the response must have.
"""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass

__all__ = ["ATTEMPTS", "ROW_CALLS", "Attempt", "forge", "mix"]

_FILTER, _REQUEST, _CURSOR, _QUESTION = (
    "HR-SERVE-FILTER",
    "HR-SERVE-REQUEST",
    "HR-SERVE-CURSOR",
    "HR-VIEW-QUESTION",
)
_FILTER_CHARS_MAX = 4_000
"""The server refuses longer texts before it parses them."""
_UNION = "0) UNION SELECT holder, pin, funds FROM vault_accounts WHERE (holder"


@dataclass(frozen=True, slots=True)
class Attempt:
    name: str
    """The parameter."""
    text: str
    code: str
    rows: str = ""
    """``all`` or ``none`` if the request succeeds."""


_FILTERS = (
    f"`{_UNION}` != null",
    f"`{_UNION}` = null",
    f'`author" {_UNION}` != null',
    "author = 'x' OR 1=1",
    "1=1",
    'author = "x"; DROP TABLE notes',
    'author = "x" --',
    'author = "x" /* */ or 1 = 1',
    'author = "x" union select * from vault_accounts',
    "author = (SELECT pin FROM vault_accounts)",
    "author in (SELECT pin FROM vault_accounts)",
    "sleep(10)",
    "randomblob(1000000000)",
    "pin = null",
    '`pin` startswith "s"',
    'vault_accounts.pin = "x"',
    '"author" = "x"',
    "`` = null",
    "`author\x00` = null",
    "\u0430uthor = null",
    'author \uff1d "x"',
    "stars = 1e400",
    "stars = 99999999999999999999",
    "stars = " + "9" * 3_000,
    "(" * 200 + "stars = 1" + ")" * 200,
    "not " * 100 + "stars = 1",
    " or ".join(["stars = 1"] * 400),
    "stars in (" + ", ".join(["1"] * 200) + ")",
    'author = "' + "x" * 4_000 + '"',
    'author = "x',
    "author LIKE '%'",
    'author = "x" and',
    "= null",
)
_VALUES = (
    "x' OR '1'='1",
    "'; DROP TABLE notes; --",
    "\\'; SELECT 1",
    "%",
    "_",
    "x\\u0000",
    "\U0001f600",
    "$1",
    "?",
    ":a",
)
_SORTS = (
    "author; DROP TABLE notes",
    "(SELECT pin FROM vault_accounts)",
    "author desc",
    "author COLLATE NOCASE",
    "1",
    "author,author",
    "-",
    "--author",
    "pin",
    "CASE WHEN 1=1 THEN author ELSE stars END",
    f"{_UNION}",
    "author/**/",
    "\u0430uthor",
    "rowid",
    ",".join(["author"] * 50),
)
_KEYS = (
    "' OR '1'='1",
    "x'; DROP TABLE notes; --",
    '" OR ""="',
    "x UNION SELECT pin FROM vault_accounts",
    "../vault_accounts",
)

ATTEMPTS = (
    *(Attempt("filter", text, _FILTER if len(text) <= _FILTER_CHARS_MAX else _REQUEST) for text in _FILTERS),
    *(Attempt("filter", f"author = {json.dumps(value)}", "", "none") for value in _VALUES),
    *(Attempt("filter", f"author != {json.dumps(value)}", "", "all") for value in _VALUES),
    *(Attempt("filter", f"author startswith {json.dumps(value)}", "", "none") for value in _VALUES),
    *(Attempt("sort", text, _FILTER) for text in _SORTS),
    *(Attempt("prefix", text, "", "none") for text in _KEYS),
    *(Attempt("key", text, "HR-SERVE-NOT-THERE") for text in _KEYS),
    *(Attempt("column", text, _REQUEST) for text in ("pin", "*", "author, pin", "(SELECT 1)")),
    *(Attempt("limit", text, _REQUEST) for text in ("1 UNION SELECT 1", "-1", "1;", "9" * 30, "1 OFFSET 1")),
)  # fmt: skip
ROW_CALLS = frozenset({"", _FILTER, _REQUEST, _CURSOR, _QUESTION})
"""Codes that a randomly assembled filter, sort or cursor can get."""
_WORDS = (
    *("author", "note_id", "stars", "pin", "`author`", f"`{_UNION}`", "=", "!=", "<", ">=", "in", "startswith", "("),
    *('"ada"', '"x\' OR 1=1"', "1", "-1", "1e308", "9223372036854775808", "null", "true", "and", "or", "not", ",", ";"),
    *(")", "--", "/*", "'", '"', "`", "\\", "UNION SELECT", "vault_accounts", "\u0430", "\uff02", "%", "\x01"),
    *("\u2028", "$1", "?"),
)  # fmt: skip


def mix(rng: random.Random) -> tuple[str, str]:
    """Return a parameter name and a random text for it."""
    name = rng.choice(("filter", "filter", "filter", "sort", "prefix", "from", "to", "cursor", "match"))
    words = rng.choices(_WORDS, k=rng.randint(1, 9))
    if name == "cursor":
        return name, forge(rng, " ".join(words))
    return name, ("," if name == "sort" else " ").join(words)


def forge(rng: random.Random, text: str) -> str:
    """Return a forged cursor."""
    part = rng.choice(("filter", "sort", "after", "prefix", "begin", "end", "words"))
    view = rng.choice(("notes", "notes", "vault_accounts"))
    cursor = json.dumps({"view": view, "at": "x", part: text})
    return base64.urlsafe_b64encode(cursor.encode()).rstrip(b"=").decode()
