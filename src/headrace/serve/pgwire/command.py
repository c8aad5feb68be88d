"""What is answered without the engine: transactions, settings, and what else clients say before and between.

There is nothing to write, so a transaction changes nothing but its sign. A setting is only taken where it is what is
done anyway, or no matter; or one of ours:

    headrace.after       a token: what is read shows all that it tells of
    headrace.wait        how long to wait for that, as ``2s``
    headrace.position    a token of what the last statement has read
    headrace.positions   where each of its views stood, as JSON
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.serve.pgwire.catalogue import SETTINGS
from headrace.serve.pgwire.cursor import NAME, Declared, Fetched, declared, fetched, name_of
from headrace.serve.pgwire.splitting import bare

__all__ = ["AFTER", "POSITION", "POSITIONS", "WAIT", "Command", "command_of"]

AFTER, WAIT = "headrace.after", "headrace.wait"
POSITION, POSITIONS = "headrace.position", "headrace.positions"
_TRANSACTION = {
    "begin": ("BEGIN", b"T"),
    "start": ("START TRANSACTION", b"T"),
    "commit": ("COMMIT", b"I"),
    "end": ("COMMIT", b"I"),
    "rollback": ("ROLLBACK", b"I"),
    "abort": ("ROLLBACK", b"I"),
}
_PLAIN = {"savepoint": "SAVEPOINT", "release": "RELEASE", "unlisten": "UNLISTEN"}
_NO_MATTER = {
    "application_name", "bytea_output", "client_min_messages", "datestyle", "extra_float_digits", "intervalstyle",
    "jit", "lock_timeout", "search_path", "session", "statement_timeout", "transaction",
    "idle_in_transaction_session_timeout",
    "default_transaction_isolation", "default_transaction_read_only", "standard_conforming_strings",
}  # fmt: skip
_SET = re.compile(r"set\s+(?:session\s+|local\s+)?(time\s+zone|[a-z_.]+)\s*(?:=|to\b)?\s*(.*)", re.I | re.S)
_SHOW = re.compile(r"show\s+(transaction\s+isolation\s+level|time\s+zone|[a-z_.]+)", re.I)
_NAMED = re.compile(rf"(?:close|deallocate)\s+(?:prepare\s+)?({NAME})", re.I)


@dataclass(frozen=True, slots=True)
class Command:
    tag: str
    status: bytes = b""
    """Of the transaction, from now on; unchanged if empty."""
    shown: tuple[str, str] | None = None
    """A name and its value, of SHOW."""
    setting: tuple[str, str] | None = None
    """One of ours, and what it is from now on."""
    drops: tuple[str, str] | None = None
    """``cursor`` or ``statement``, and which; all without a name."""
    declared: Declared | None = None
    fetched: Fetched | None = None
    trouble: tuple[str, str] | None = None
    """A state and a message."""


def command_of(sql: str, own: Mapping[str, str]) -> Command | None:
    """None for what the engine is asked. ``own`` are our settings of the connection."""
    text = bare(sql)
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
            return _show(text, own)
        case "reset":
            name = text[5:].strip().lower()
            return Command("RESET", setting=(name, "") if name in (AFTER, WAIT) else None)
        case "discard":
            return Command("DISCARD ALL", drops=("statement", ""))
        case "deallocate" | "close":
            return _drop(text, first)
        case "declare":
            found = declared(text)
            return Command("DECLARE CURSOR", declared=found) if found else None
        case "fetch" | "move":
            return _fetch(text, first.upper())
    return Command(_PLAIN[first]) if first in _PLAIN else None


def _drop(text: str, first: str) -> Command:
    tag, kind = ("CLOSE CURSOR", "cursor") if first == "close" else ("DEALLOCATE", "statement")
    found = _NAMED.fullmatch(text)
    if found is None:
        return Command("", trouble=("42601", f"{first.upper()} takes one name, or ALL"))
    return Command(tag, drops=(kind, "" if found[1].lower() == "all" else name_of(found[1])))


def _fetch(text: str, tag: str) -> Command:
    found = fetched(text)
    if found is None:
        return Command("", trouble=("0A000", f"{tag} goes forward only here: {tag} FORWARD 100 FROM name"))
    return Command(tag, fetched=found)


def _set(text: str) -> Command:
    found = _SET.fullmatch(text)
    name = " ".join(found[1].lower().split()) if found else ""
    value = found[2].strip() if found else ""
    value = value[1:-1].replace("''", "'") if len(value) > 1 and value[0] == value[-1] == "'" else value
    if name in (AFTER, WAIT):
        return Command("SET", setting=(name, "" if value.lower() == "default" else value))
    if name in _NO_MATTER:
        return Command("SET")
    value = value.strip("'\"").lower()
    if (name in ("timezone", "time zone") and value in ("utc", "etc/utc", "gmt", "z", "0", "default")) or (
        name in ("client_encoding", "names") and value.replace("-", "") in ("utf8", "unicode")
    ):
        return Command("SET")
    return Command(
        "", trouble=("0A000", f"{name or 'this'} cannot be set here: nothing but reading is answered")
    )


def _show(text: str, own: Mapping[str, str]) -> Command:
    found = _SHOW.fullmatch(text)
    name = "_".join(found[1].lower().split()) if found else ""
    name = {"transaction_isolation_level": "transaction_isolation", "time_zone": "timezone"}.get(name, name)
    for known, value in (*own.items(), *SETTINGS.items()):
        if known.lower() == name:
            return Command("SHOW", shown=(known, value))
    return Command("", trouble=("42704", f"there is no setting {name or text[:80]!r}"))
