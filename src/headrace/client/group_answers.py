"""What is asked of the coordinators of groups, and what they answer, as it goes from process to process."""

from __future__ import annotations

import msgspec
from confluent_kafka import KafkaError, KafkaException

__all__ = [
    "Answer",
    "Committed",
    "Described",
    "Group",
    "Job",
    "Listed",
    "Member",
    "Move",
    "Question",
    "Refused",
]


class Job(msgspec.Struct, frozen=True):
    """The first line: whom to ask."""

    bootstrap: str
    properties: dict[str, str]
    timeout_s: float


class Listed(msgspec.Struct, frozen=True, tag=True):
    """All that there are."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    groups: list[str]


class Described(msgspec.Struct, frozen=True, tag=True):
    groups: list[str]


class Move(msgspec.Struct, frozen=True, tag=True):
    group: str
    places: list[tuple[str, int, int]]
    """Topic, partition, offset."""


Question = Listed | Committed | Described | Move


class Refused(msgspec.Struct, frozen=True):
    code: int
    text: str
    retriable: bool

    @classmethod
    def of(cls, error: KafkaError) -> Refused:
        return cls(error.code(), error.str(), error.retriable())

    @property
    def error(self) -> KafkaException:
        return KafkaException(KafkaError(self.code, self.text, False, self.retriable))


class Member(msgspec.Struct, frozen=True):
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    places: list[tuple[str, int]]


class Group(msgspec.Struct, frozen=True):
    state: str
    type: str
    assignor: str | None
    members: list[Member]


class Answer(msgspec.Struct, frozen=True):
    """By the names of the groups, as far as they were asked for."""

    listed: dict[str, tuple[str, str]] = {}
    """Their states and types."""
    committed: dict[str, list[tuple[str, int, int]]] = {}
    groups: dict[str, Group] = {}
    refused: dict[str, Refused] = {}
    unmoved: list[tuple[str, int, Refused]] = []
