"""A manifest: one moment of the whole log, as bytes of pieces.

    manifests/<sequence, 10 digits>-<moment in ms, 13 digits>-<base's sequence, 10 digits>-<run, 8 hex digits>.json

One line of JSON, and behind it a line with its CRC-32C in eight hex digits and, where the broker has a key, a space and
its MAC (``authenticity``). It names, for the two journals and for every partition, the offsets that it begins and ends
at, and the pieces that hold its segments, each with its checksum and its SHA-256.

Places and names of files become paths. So each has a pattern, and a manifest with any other name is refused as a whole
when it is decoded.

A *full* manifest names everything. Any other has a ``base``, the sequence of a full one, and names what is different
from that, so at most two files are read for a moment, and writing one costs what has changed.

Invariant: what a manifest names was durable in the folder before the manifest took its name, and stays there for as
long as the manifest does. A manifest is never written again; the next moment is another file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from headrace.broker.backup.authenticity import Authenticity, authenticity_of, mac_of
from headrace.broker.backup.errors import BackupDamaged
from headrace.checksum import crc32c
from headrace.log.mark import Mark

__all__ = [
    "FORMAT",
    "GROUPS",
    "METADATA",
    "Manifest",
    "ManifestName",
    "Part",
    "Piece",
    "Restored",
    "Run",
    "StateCopy",
    "authenticity_in",
    "decode",
    "encode",
    "place_of",
]

FORMAT = 1
METADATA, GROUPS = "metadata", "groups"
_NAME = re.compile(r"([0-9]{10})-([0-9]{13})-([0-9]{10})-([0-9a-f]{8})\.json")

TopicId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Place = Annotated[str, Meta(pattern=r"\A(?:metadata|groups|[0-9a-f]{32}/(?:0|[1-9][0-9]{0,8}))\Z")]
PieceFile = Annotated[str, Meta(pattern=r"\A[0-9]{20}-[0-9]{12}-[0-9]{10}-[0-9a-f]{8}\.piece\Z")]
StateFile = Annotated[str, Meta(pattern=r"\A[0-9]{20}-[0-9]{10}-[0-9a-f]{8}\.state\Z")]
ManifestFile = Annotated[str, Meta(pattern=rf"\A{_NAME.pattern}\Z")]
TopicName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9._-]{1,249}\Z")]
RunId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
Identifier = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Crc = Annotated[int, Meta(ge=0, lt=2**32)]
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def place_of(topic_id: bytes, partition: int) -> str:
    """Where a partition's pieces are, and the name that manifests have for it."""
    return f"{topic_id.hex()}/{partition}"


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of a segment, from ``at`` on, in a file of their own. ``level``: how often such were joined to make it."""

    file: PieceFile
    at: Count
    size: Count
    crc: Crc
    level: Count = 0
    sha256: Sha256 = ""
    """Empty in pieces of releases that wrote none."""

    @property
    def end(self) -> int:
        return self.at + self.size


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment: its pieces, back to back from byte 0."""

    base_offset: Count
    pieces: tuple[Piece, ...] = ()

    @property
    def size(self) -> int:
        return self.pieces[-1].end if self.pieces else 0


class StateCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of the partition's newest ``.state``."""

    file: StateFile
    offset: Count
    size: Count
    crc: Crc
    sha256: Sha256 = ""


class Part(msgspec.Struct, frozen=True, gc=False):
    """A partition or a journal at that moment. It ends at ``position`` of the segment that begins at ``segment``."""

    start: Count
    end: Count
    segment: Count
    position: Count
    segments: tuple[Run, ...]
    synced: tuple[Count, Count] = (0, 0)
    """Segment and position up to which the broker's own disk had it for sure. What lies behind may not be there after
    a power loss, where the broker does not wait for the disk.
    """
    state: StateCopy | None = None
    compacted: tuple[Count, Count, Number] | None = None
    archived: tuple[tuple[Count, Count, Count, Number], ...] = ()
    """Segments that lie in the archive only: what the backup has of it is among ``segments``."""

    @property
    def mark(self) -> Mark:
        return Mark(self.start, self.end, self.segment, self.position)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.segments)

    def sizes(self) -> dict[str, int]:
        """Its files, and how long each is."""
        found = {piece.file: piece.size for one in self.segments for piece in one.pieces}
        return found if self.state is None else found | {self.state.file: self.state.size}

    def files(self) -> list[str]:
        return list(self.sizes())


class Restored(msgspec.Struct, frozen=True, gc=False):
    """That this log was once restored: when, and where each partition ended then."""

    at_ms: Number
    manifest: ManifestFile
    ends: dict[Place, Count]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    sequence: Count
    run: RunId
    """Of the broker that wrote it: another one with each start."""
    cluster_id: Identifier
    line: Identifier
    moment_ms: Count
    """By trusted time, which is behind for an hour when the broker was down for long; what is kept goes by it."""
    starts: Count
    next_producer_id: Count
    last_trusted_ms: Number
    complete: bool = True
    """False for one that only says how far the first copy has come: it is no moment, and nothing to restore."""
    base: Count | None = None
    topics: dict[TopicId, TopicName]
    """Names by id, of those whose partitions are in it."""
    parts: dict[Place, Part]
    gone: tuple[Place, ...] = ()
    """What the base has and this has not."""
    stale: tuple[Place, ...] = ()
    """Places whose files could not be read then: what is named of them is older than the moment, or nothing."""
    restored: tuple[Restored, ...] = ()
    wall_ms: Number = 0
    """When it was taken, as people tell the time."""

    @property
    def taken_ms(self) -> int:
        return self.wall_ms or self.moment_ms

    @property
    def name(self) -> ManifestName:
        return ManifestName(
            self.sequence, self.moment_ms, self.sequence if self.base is None else self.base, self.run
        )

    def over(self, base: Manifest) -> Manifest:
        """The same moment with all of its parts, under the same name."""
        parts = {place: part for place, part in base.parts.items() if place not in self.gone} | self.parts
        return msgspec.structs.replace(self, parts=parts, gone=())

    def from_base(self, base: Manifest) -> Manifest:
        """The same moment, as what is different from another; ``self`` is in full."""
        return msgspec.structs.replace(
            self,
            base=base.sequence,
            parts={place: part for place, part in self.parts.items() if base.parts.get(place) != part},
            gone=tuple(sorted(base.parts.keys() - self.parts.keys())),
        )

    def label(self, place: str) -> str:
        """A partition as people call it."""
        topic, _, number = place.partition("/")
        return f"{self.topics.get(topic, topic)}-{number}" if number else f"the journal of {topic}"

    def place(self, topic: str, partition: int) -> str | None:
        for topic_id, name in self.topics.items():
            if name == topic:
                place = f"{topic_id}/{partition}"
                return place if place in self.parts else None
        return None

    def records(self) -> int:
        return sum(part.end - part.start for place, part in self.parts.items() if "/" in place)

    def bytes(self) -> int:
        return sum(part.size for part in self.parts.values())

    def archived(self) -> dict[str, int]:
        """Bytes that lie in the archive only, because it could not be read, by place."""
        found = {place: sum(size for _, _, size, _ in part.archived) for place, part in self.parts.items()}
        return {place: size for place, size in found.items() if size}


class ManifestName(NamedTuple):
    sequence: int
    moment_ms: int
    base: int
    """Its own sequence, if it is a full one."""
    run: str

    @property
    def file(self) -> str:
        return f"{self.sequence:010d}-{self.moment_ms:013d}-{self.base:010d}-{self.run}.json"

    @classmethod
    def read(cls, name: str) -> ManifestName | None:
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2]), int(found[3]), found[4])


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest, key: bytes | None = None) -> bytes:
    body = _encoder.encode(manifest)
    mac = "" if key is None else f" {mac_of(key, body)}"
    return body + f"\n{crc32c(body):08x}{mac}\n".encode()


def authenticity_in(raw: bytes, key: bytes | None) -> Authenticity:
    body, _, mac = _split(raw)
    return authenticity_of(body, mac, key)


def decode(raw: bytes, where: str) -> Manifest:
    """Raises ``BackupDamaged`` unless all of it is as it was written, with names that can be no other path."""
    body, crc, _ = _split(raw)
    if crc != f"{crc32c(body):08x}":
        raise _damaged(where, "its checksum does not match")
    try:
        told = msgspec.json.decode(body, type=Mapping[str, msgspec.Raw])
        found = msgspec.json.decode(told.get("format", b"0"), type=int)
        if found != FORMAT:
            raise BackupDamaged(
                f"{where} has format {found}, and this release reads {FORMAT}",
                hint="use the release that wrote it",
            )
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(where, str(error)) from error


def _split(raw: bytes) -> tuple[bytes, str, str]:
    """The JSON, its checksum, and its MAC, which may be empty."""
    body, _, checks = raw.removesuffix(b"\n").rpartition(b"\n")
    crc, _, mac = checks.decode("ascii", "replace").partition(" ")
    return body, crc, mac


def _damaged(where: str, reason: str) -> BackupDamaged:
    return BackupDamaged(
        f"the manifest {where} is damaged: {reason}",
        hint="headrace backup check FOLDER says which moments are whole",
    )
