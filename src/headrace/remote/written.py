"""Where records are that were written."""

from __future__ import annotations

import msgspec

__all__ = ["Place", "Tally", "Written", "WrittenMany"]


class Place(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class Written(msgspec.Struct, frozen=True):
    topic: str
    records: list[Place]
    """In the order in which they were given."""
    token: str
    """For ``after``, here and anywhere else."""
    request: str = ""
    """The Idempotency-Key that it was sent with."""
    repeated: bool = False
    """Whether an earlier request with the key had been carried out already."""


class WrittenMany(msgspec.Struct, frozen=True):
    topic: str
    records: int
    requests: int
    """How many it took."""
    repeated: int
    """How many of these had been carried out before."""
    token: str
    """For ``after``: what is read with it shows all of them."""
    request: str
    """To begin again with."""


class Tally:
    """What many writes come to."""

    def __init__(self, topic: str, request: str) -> None:
        self.topic = topic
        self.request = request
        self.records = self._requests = self._repeated = 0
        self._tokens: dict[int, str] = {}
        """The newest of each partition."""

    def add(self, written: Written) -> None:
        self.records += len(written.records)
        self._requests += 1
        self._repeated += written.repeated
        self._tokens.update({one.partition: written.token for one in written.records})

    def told(self) -> WrittenMany:
        token = ",".join(dict.fromkeys(self._tokens.values()))
        return WrittenMany(self.topic, self.records, self._requests, self._repeated, token, self.request)
