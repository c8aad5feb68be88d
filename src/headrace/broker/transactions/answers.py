"""What the coordinator answers, as plain values."""

from __future__ import annotations

from typing import NamedTuple

from headrace.wire.codes import ErrorCode

__all__ = ["DescribedTransaction", "EndAnswer", "InitAnswer", "ListedTransaction"]

_NONE = -1


class InitAnswer(NamedTuple):
    error: ErrorCode
    producer_id: int = _NONE
    epoch: int = _NONE


class EndAnswer(NamedTuple):
    """The producer id and epoch to go on with, which clients of the second protocol take over."""

    error: ErrorCode
    producer_id: int = _NONE
    epoch: int = _NONE


class DescribedTransaction(NamedTuple):
    id: str
    state: str
    timeout_ms: int
    began_ms: int
    producer_id: int
    epoch: int
    partitions: dict[str, list[int]]


class ListedTransaction(NamedTuple):
    id: str
    state: str
    producer_id: int
