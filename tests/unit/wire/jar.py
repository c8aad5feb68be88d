"""The Kafka client's jar, as a source of the protocol's definitions."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from typing import Any

from tools.jars import jar


@cache
def definition(name: str) -> dict[str, Any]:
    """Kafka's own definition of a message. The files are JSON with comments on lines of their own."""
    text = member(f"common/message/{name}.json").decode()
    members_found: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return members_found


def member(path: str) -> bytes:
    return _members()[path]


@cache
def _members() -> dict[str, bytes]:
    """The definitions and the list of errors, from one pass over the jar."""
    pattern = re.compile(r"common/message/\w+\.json|org/apache/kafka/common/protocol/Errors\.class")
    with zipfile.ZipFile(jar("kafka-clients:4.3.0")) as archive:
        return {path: archive.read(path) for path in archive.namelist() if pattern.fullmatch(path)}
