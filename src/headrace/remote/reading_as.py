"""Rows and values as what the caller wants them to be: dicts, or objects of a class of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.model.schema import schema_of
from headrace.model.values import Codec
from headrace.remote.errors import AnswerUnfit

__all__ = ["Read"]

T = TypeVar("T")
_KEPT = (datetime, date, Decimal, bytes)


class Read(Generic[T]):
    """``kind`` is a dataclass, or what else msgspec converts to; None for dicts."""

    def __init__(self, kind: type[T] | None) -> None:
        self._kind = kind
        self._codec = Codec(schema_of(kind)) if dataclasses.is_dataclass(kind) else None
        self.row: Callable[[dict[str, Any]], T] = self._converted if kind is not None else _same

    def json(self, raw: bytes) -> T:
        """Of a value as the log has it. Without a class, an exact number is a float: nothing says that it is none."""
        try:
            if self._codec is not None:
                return self._converted(self._codec.decode(raw))
            if self._kind is not None:
                return msgspec.json.decode(raw, type=self._kind)
            return cast(T, msgspec.json.decode(raw))
        except (ValueDoesNotFit, msgspec.DecodeError) as error:
            raise self._unfit(error) from None

    def _converted(self, row: dict[str, Any]) -> T:
        assert self._kind is not None
        try:
            return msgspec.convert(row, self._kind, builtin_types=_KEPT)
        except msgspec.ValidationError as error:
            raise self._unfit(error) from None

    def _unfit(self, error: Exception) -> AnswerUnfit:
        name = getattr(self._kind, "__name__", "JSON")
        return AnswerUnfit(
            f"what came is no {name}: {error}", hint="leave the class out, and see what is there"
        )


def _same(row: dict[str, Any]) -> Any:
    return row
