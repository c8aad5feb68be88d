"""Hostile names: paths, control characters, invalid UTF-8, and names that differ only in case or in one character."""

from __future__ import annotations

import random
import re

__all__ = ["hostile_name", "is_text", "is_topic_name"]

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)

_FIXED_NAMES: tuple[str | bytes, ...] = (
    "../x",
    "../../x",
    "../../canary",
    "../../../x",
    "..",
    ".",
    "...",
    "",
    "a/b",
    "a/../b",
    "/",
    "/tmp/x",
    "./x",
    "x/",
    "\\..\\x",
    "a\0b",
    "\0",
    "x\0/../..",
    "a" * 249,
    "a" * 250,
    "b" * 1000,
    "../" * 80,
    "é",
    "日本",
    "\u202eabc",
    "a\u0301",
    "\u2024\u2024/x",
    "A",
    "a",
    "Twin",
    "twin",
    "TWIN",
    "tw.in",
    "tw_in",
    "a b",
    " a",
    "a\nb",
    "a\r\nb",
    "\t",
    "-rf",
    "~",
    "~root",
    "$(touch x)",
    "`touch x`",
    "x;touch y",
    "%2e%2e%2fx",
    "{0}",
    "%s%n",
    "con",
    "lock",
    "mark",
    "headrace.json",
    "metadata",
    "groups",
    "topics",
    "__cluster_metadata",
    "__consumer_offsets",
    ".hidden",
    "0" * 32,
    "00000000000000000000.log",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\xae\xc0\xae/x",
    b"a\x80",
)
_PIECES = (
    *("..", "/", ".", "\0", "a", "B", "x", "_", "-", " ", "\\", "é", "topics", "\n"),
    *("~", "'", '"', "*", "%", "canary"),
)


def hostile_name(rng: random.Random, absolute: str) -> str | bytes:
    """Return a fixed hostile name or a random mixture. ``absolute`` is a path that some names try to reach."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(_FIXED_NAMES)
    if kind < 0.55:
        return rng.choice(
            [absolute, absolute + "/x", absolute + "\0", "../" * rng.randint(1, 12) + absolute.lstrip("/")]
        )
    if kind < 0.95:
        return "".join(rng.choice(_PIECES) for _ in range(rng.randint(1, 8)))
    return rng.choice(_PIECES) * rng.randint(100, 4000)


def is_text(name: str | bytes) -> bool:
    """Whether the name can be sent as a string of the protocol."""
    if isinstance(name, str):
        return True
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_topic_name(name: str | bytes) -> bool:
    """Whether Kafka allows the topic name. The rule is implemented without the product's code."""
    text = name if isinstance(name, str) else name.decode(errors="replace")
    return _TOPIC_NAME.fullmatch(text) is not None and text not in (".", "..")
