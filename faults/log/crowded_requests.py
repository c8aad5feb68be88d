"""Requests that are as large as their limits allow, for any API, generated from the schemas of its messages.

again      every list repeats one element as often as possible; the names in it exist
within     the outermost lists have one element; its nested lists have as many elements as possible, each for another
           partition
distinct   as ``again``, but each element has its own name
long       every string is as long as the protocol allows, with one 4-byte character
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from headrace.wire import Api, messages, versions
from headrace.wire.notation import Field, Struct

__all__ = ["KINDS", "NAMES", "crowded"]

KINDS = ("again", "within", "distinct", "long")

#: The names that exist during a run, by the field that refers to them.
NAMES = {
    "name": "wide",
    "topic": "wide",
    "topic_name": "wide",
    "topic_names": "wide",
    "resource_name": "wide",
    "group_id": "group",
    "groups": "group",
    "groups_names": "group",
    "key": "group",
    "coordinator_keys": "group",
    "transactional_id": "transaction",
    "transactional_ids": "transaction",
    "v3_and_below_transactional_id": "transaction",
    "protocol_type": "consumer",
    "client_software_name": "attacker",
    "client_software_version": "1",
}
_NUMBERS = {
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "transaction_timeout_ms": 60_000,
    "timeout_ms": 1_000,
    "resource_type": 2,
    "endpoint_type": 1,
    "acks": -1,
    "replica_id": -1,
    "session_epoch": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "num_partitions": 1,
    "replication_factor": 1,
    "current_leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "response_partition_limit": 2**31 - 1,
    "isolation_level": 1,
}
_PARTITIONS = {"index", "partition", "partition_index", "partition_indexes", "partitions"}
_ELEMENTS_MAX = 11_900
_WEIGHTS = {
    Api.PRODUCE: 3,
    Api.CREATE_TOPICS: 6,
    Api.DELETE_TOPICS: 6,
    Api.CREATE_PARTITIONS: 6,
    Api.DELETE_RECORDS: 12,
    Api.DESCRIBE_CONFIGS: 2,
    Api.ALTER_CONFIGS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 2,
}
_FRAME_BYTES_MAX = 4_000_000
_TEXT_BYTES_MAX = 32_000
_LONG_ELEMENTS = 100


def crowded(api: Api, kind: str) -> Any:
    """Return a request of the newest version that stays within the limits of bytes and elements."""
    version = versions(api)[1]
    cls = getattr(messages, f"{api.title}Request")
    elements = _ELEMENTS_MAX // _WEIGHTS.get(api, 1)
    numbers = count()
    text: Callable[[Field], str] = lambda field: NAMES.get(field.name, "x")  # noqa: E731
    if kind == "distinct":
        text = lambda field: f"{next(numbers)}"  # noqa: E731
    elif kind == "long":
        texts = max(1, _texts(cls.struct_, version))
        elements = min(elements, _LONG_ELEMENTS)
        size = min(_TEXT_BYTES_MAX, _FRAME_BYTES_MAX // (texts * elements))
        text = lambda field: f"{next(numbers):06}" + "x" * (size - 10) + "😀"  # noqa: E731
    return _Builder(cls, version, text, is_nested=kind == "within").build(cls, cls.struct_, elements)


class _Builder:
    def __init__(self, message: Any, version: int, text: Callable[[Field], str], *, is_nested: bool) -> None:
        self._message = message
        self._version = version
        self._text = text
        self._is_nested = is_nested
        self._partitions = count()

    def build(self, cls: Any, struct: Struct, elements: int) -> Any:
        """Return a struct whose lists have about this many elements in total."""
        lists = [field for field in struct.fields if field.is_array and self._has(field)]
        share = elements // max(1, len(lists))
        return cls(
            **{
                field.name: self._list(field, share) if field.is_array else self._value(field, 0)
                for field in struct.fields
                if self._has(field)
            }
        )

    def _has(self, field: Field) -> bool:
        return self._version in field.versions and field.tag is None

    def _list(self, field: Field, elements: int) -> list[Any]:
        inner = _lists(field.struct, self._version) if field.struct is not None else 0
        if inner and self._is_nested:
            return [self._value(field, elements - 1)]
        length = max(1, elements // (1 + inner))
        return [self._value(field, inner) for _ in range(length)]

    def _value(self, field: Field, elements: int) -> Any:
        if field.struct is not None:
            return self.build(getattr(self._message, field.type), field.struct, elements)
        if field.type == "string":
            return self._text(field)
        if field.type in ("bytes", "records"):
            return b"" if field.type == "bytes" else None
        if field.type == "uuid":
            return bytes(16)
        if field.type == "bool":
            return field.name.startswith("include") or field.name in ("validate_only", "require_stable")
        if self._is_nested and field.name in _PARTITIONS:
            return next(self._partitions) % 1_000
        return _NUMBERS.get(field.name, 0)


def _lists(struct: Struct | None, version: int) -> int:
    """Return the number of lists in a struct, including those of nested structs."""
    if struct is None:
        return 0
    return sum(
        1 + _lists(field.struct, version)
        for field in struct.fields
        if field.is_array and version in field.versions
    )


def _texts(struct: Struct, version: int) -> int:
    found = 0
    for field in struct.fields:
        if version in field.versions:
            found += _texts(field.struct, version) if field.struct is not None else field.type == "string"
    return found
