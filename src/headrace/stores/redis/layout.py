"""The keys of a view in Redis.

    shop:revenue                a hash, the serving part: one field per row; its name is the row's key, its value JSON
    {shop:revenue}:building     the building part
    {shop:revenue}:kept         the kept part, a former serving part
    {shop:revenue}:moving       the former serving part, while a script exchanges it with the kept part
    {shop:revenue}:headrace     a hash with the metadata of the view:

        format                  1
        epoch, owner, taken_ms  the follower that may write
        wish                    how often a rebuild was requested
        serving                 the position of the serving part, as JSON; absent before the first swap
        serving.rows            its number of rows, to detect a change by another program
        serving.shape           its columns and key, as JSON
        serving.wish            the number of rebuild requests when it was built
        serving.reason          why it was built
        serving.id              a random text that identifies the part, so that a scan detects a swap; absent if an
                                older release built the part
        building, building.…    the same for the building part
        kept, kept.…            the same for the kept part

A swap renames keys and fields in one script. Its time does not depend on the number of rows.

Redis Cluster hashes only the text in the braces of a key, so all keys of a view are in the same slot. In Redis a hash
without fields does not exist, so a view without rows has only the metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.stores.errors import StoreDamaged
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.redis.server import Command, read_keys
from headrace.stores.writer import Owner, Part

__all__ = ["FORMAT", "Keys", "Metadata", "parse_metadata", "position_json", "read_metadata"]

FORMAT = 1
position_json = msgspec.json.Encoder().encode
_decode_position = msgspec.json.Decoder(Position).decode


@dataclass(frozen=True, slots=True)
class Keys:
    prefix: str
    view: str

    @property
    def serving(self) -> str:
        return f"{self.prefix}{self.view}"

    @property
    def moving(self) -> str:
        return f"{self._slot}:moving"

    @property
    def metadata(self) -> str:
        return f"{self._slot}:headrace"

    @property
    def _slot(self) -> str:
        # If the prefix contains braces, it already determines the slot.
        return self.serving if "{" in self.prefix else f"{{{self.serving}}}"

    def rows(self, part: Part) -> str:
        return self.serving if part is Part.SERVING else f"{self._slot}:{part}"

    def all_rows(self) -> list[str]:
        """Return the keys of the parts, in the order of ``Part``."""
        return [self.rows(part) for part in Part]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a view as of one time."""

    fields: dict[str, str]
    row_counts: dict[Part, int]
    """The actual number of rows."""

    @property
    def owner(self) -> Owner | None:
        if "epoch" not in self.fields:
            return None
        with _damage_errors():
            return Owner(int(self.fields["epoch"]), self.fields["owner"])

    @property
    def format(self) -> int:
        return int(self.fields.get("format", 0))

    @property
    def rebuild_requests(self) -> int:
        return int(self.fields.get("wish", 0))

    def fulfilled_requests(self, part: Part) -> int:
        return int(self.fields.get(f"{part}.wish", 0))

    def position(self, part: Part) -> Position | None:
        text = self.fields.get(part)
        with _damage_errors():
            return None if text is None else _decode_position(text)

    def state(self, part: Part) -> ViewState | None:
        position = self.position(part)
        if position is None:
            return None
        with _damage_errors():
            schema, requests, reason = (self.fields[f"{part}.{name}"] for name in ("shape", "wish", "reason"))
            return ViewState(ViewSchema.parse(schema), position, int(requests), reason, self.fault(part))

    def fault(self, part: Part) -> str:
        """Return why the rows differ from those that were written, or an empty text if no difference is detected."""
        expected, actual = int(self.fields.get(f"{part}.rows", 0)), self.row_counts[part]
        if expected == actual:
            return ""
        return (
            f"found {actual} rows instead of {expected}; another program changed them, or Redis evicted them"
        )

    def names(self, part: Part) -> list[str]:
        """Return the names of the part's fields."""
        return [name for name in self.fields if name == part or name.startswith(f"{part}.")]

    def fields_as(self, part: Part, source: Part) -> list[str]:
        """Return all fields of ``source``, renamed for ``part``, as alternating names and values."""
        return [
            text for name in self.names(source) for text in (name.replace(source, part, 1), self.fields[name])
        ]


@contextlib.contextmanager
def _damage_errors() -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise StoreDamaged(
            f"cannot decode the metadata of the view: {error}",
            hint="another program might have changed it; delete the view's keys, and the follower rebuilds the view",
        ) from error


def read_metadata(keys: Keys, *extra_reads: tuple[str, str]) -> Command:
    """Return the command that reads the input of ``parse_metadata``. It also runs ``extra_reads``, atomically."""
    row_counts = (("HLEN", key) for key in keys.all_rows())
    return read_keys([("HGETALL", keys.metadata), *row_counts, *extra_reads])


def parse_metadata(responses: Sequence[Any]) -> Metadata:
    metadata, *others = responses
    with _damage_errors():
        texts = [text.decode() for text in metadata]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    return Metadata(fields, dict(zip(Part, others, strict=False)))
