"""A field's default as JSON text, which keeps what JSON inside JSON would not: exact digits, NaN."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.model.fitting import fit
from headrace.model.json_text import parse
from headrace.model.kinds import Kind
from headrace.model.writing import writer

__all__ = ["default_from_text", "default_text"]


def default_text(kind: Kind, default: Any) -> str:
    return msgspec.json.encode(writer(kind)(default)).decode()


def default_from_text(kind: Kind, text: str) -> Any:
    return fit(kind, parse(text.encode()))
