"""A manifest: the list of the files (pieces) of one restore point.

    manifests/<sequence, 10 digits>-<time in ms, 13 digits>-<base's sequence, 10 digits>-<run, 8 hex digits>.json

The first line is JSON. The second line is the CRC-32C of the JSON in eight hex digits and, if the broker has a key, a
space and the MAC. The manifest lists the two journals and every partition. For each, it has the first and last offset,
and the pieces of the segments with their CRC-32C and SHA-256.

Log ids and file names become paths. So the decoder checks them against patterns, and refuses a manifest with other
names.

A *full* manifest lists all logs. Any other manifest has a ``base``, the sequence number of a full manifest, and lists
only the logs that differ from it. So a restore reads at most two manifests, and a manifest with a base is small.

Authenticity: a checksum detects damage, but anyone who can write to the folder can compute a new checksum. With a key,
each manifest has the HMAC-SHA256 of its JSON. The JSON contains the SHA-256 of every piece, so the MAC covers all bytes
of a restore point. The MAC does not detect that newer restore points were removed.

Invariant: the pieces of a manifest are durable before the manifest is renamed to its final name, and they exist as long
as the manifest. A manifest is never changed. Each restore point has its own manifest.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from headrace.broker.backup.errors import BackupDamaged
from headrace.checksum import crc32c
from headrace.log.mark import Mark
from headrace.settings import BrokerSettings
from headrace.settings.secrets import read_secret

__all__ = [
    "FORMAT",
    "GROUPS",
    "METADATA",
    "Authenticity",
    "Manifest",
    "ManifestName",
    "Part",
    "PastRestore",
    "Piece",
    "SegmentCopy",
    "StateCopy",
    "authenticity_of",
    "authenticity_of_manifest",
    "decode",
    "encode",
    "log_id_of",
    "mac_of",
    "read_key",
]

FORMAT = 1
METADATA, GROUPS = "metadata", "groups"
_NAME = re.compile(r"([0-9]{10})-([0-9]{13})-([0-9]{10})-([0-9a-f]{8})\.json")

TopicId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_PARTITION = r"[0-9a-f]{32}/(?:0|[1-9][0-9]{0,8})"
PartitionId = Annotated[str, Meta(pattern=rf"\A{_PARTITION}\Z")]
LogId = Annotated[str, Meta(pattern=rf"\A(?:metadata|groups|{_PARTITION})\Z")]
PieceFile = Annotated[str, Meta(pattern=r"\A[0-9]{20}-[0-9]{12}-[0-9]{10}-[0-9a-f]{8}\.piece\Z")]
StateFile = Annotated[str, Meta(pattern=r"\A[0-9]{20}-[0-9]{10}-[0-9a-f]{8}\.state\Z")]
ManifestFile = Annotated[str, Meta(pattern=rf"\A{_NAME.pattern}\Z")]
TopicName = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")]
RunId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
Identifier = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Crc = Annotated[int, Meta(ge=0, lt=2**32)]
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def log_id_of(topic_id: bytes, partition: int) -> str:
    """Return the log id of a partition. It is also the directory of the partition's pieces."""
    return f"{topic_id.hex()}/{partition}"


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file with the bytes of a segment from position ``at`` on. ``level`` counts how often its bytes were merged."""

    file: PieceFile
    at: Count
    size: Count
    crc: Crc
    level: Count = 0
    sha256: Sha256 = ""
    """Empty for pieces that older releases wrote."""

    @property
    def end(self) -> int:
        return self.at + self.size


class SegmentCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The copy of a segment: adjacent pieces that begin at byte 0."""

    base_offset: Count
    pieces: tuple[Piece, ...] = ()

    @property
    def size(self) -> int:
        return self.pieces[-1].end if self.pieces else 0


class StateCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of the partition's newest ``.state`` file, which has its producers and transactions."""

    file: StateFile
    offset: Count
    size: Count
    crc: Crc
    sha256: Sha256 = ""


class Part(msgspec.Struct, frozen=True, gc=False):
    """The copy of one log, which is a partition or a journal, as of the restore point.

    The log ends at byte ``position`` of the segment with base offset ``segment``.
    """

    start: Count
    end: Count
    segment: Count
    position: Count
    segments: tuple[SegmentCopy, ...]
    synced: tuple[Count, Count] = (0, 0)
    """The segment and byte position up to which the broker's own disk was synced. With durability ``os``, a power loss
    can remove the bytes after it.
    """
    state: StateCopy | None = None
    compacted: tuple[Count, Count, Number] | None = None
    archived: tuple[tuple[Count, Count, Count, Number], ...] = ()
    """Segments that are only in the archive. Archived segments that the backup has copied are in ``segments``."""

    @property
    def mark(self) -> Mark:
        return Mark(self.start, self.end, self.segment, self.position)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def sizes(self) -> dict[str, int]:
        """Return the size of each file, by name."""
        sizes = {piece.file: piece.size for segment in self.segments for piece in segment.pieces}
        return sizes if self.state is None else sizes | {self.state.file: self.state.size}

    def files(self) -> list[str]:
        return list(self.sizes())


class PastRestore(msgspec.Struct, frozen=True, gc=False):
    """A past restore of this data directory: its time, its manifest, and the end offset of each partition."""

    at_ms: Number
    manifest: ManifestFile
    ends: dict[LogId, Count]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    sequence: Count
    run: RunId
    """The id of the broker's run that wrote the manifest. Each start of the broker has a new id."""
    cluster_id: Identifier
    line: Identifier
    restore_point_ms: Count = msgspec.field(name="moment_ms")
    """The time of the restore point by trusted time. Pruning uses it. Trusted time can be behind for an hour
    after a long downtime.
    """
    starts: Count
    next_producer_id: Count
    last_trusted_ms: Number
    complete: bool = True
    """False if the manifest only records the progress of the first copy, and so is not a restore point."""
    base: Count | None = None
    topics: dict[TopicId, TopicName]
    """The names of the topics, by id."""
    parts: dict[LogId, Part]
    removed: tuple[LogId, ...] = msgspec.field(name="gone", default=())
    """The logs that are in the base but not in this restore point."""
    stale: tuple[PartitionId, ...] = ()
    """Partitions whose files could not be read. Their parts are older than the restore point, or missing. A journal
    is never stale: if a journal cannot be read, the backup fails, because partitions do not match an older journal.
    """
    restored: tuple[PastRestore, ...] = ()
    wall_ms: Number = 0
    """The time of the restore point by the wall clock."""

    @property
    def taken_ms(self) -> int:
        """The time to show to users. Older releases wrote no wall-clock time."""
        return self.wall_ms or self.restore_point_ms

    @property
    def name(self) -> ManifestName:
        return ManifestName(
            self.sequence, self.restore_point_ms, self.sequence if self.base is None else self.base, self.run
        )

    def completed_by(self, base: Manifest) -> Manifest:
        """Return the same restore point with all parts: those of ``base`` and those that differ from it."""
        parts = {
            log_id: part for log_id, part in base.parts.items() if log_id not in self.removed
        } | self.parts
        return msgspec.structs.replace(self, parts=parts, removed=())

    def difference_from(self, base: Manifest) -> Manifest:
        """Return the same restore point as a difference from ``base``. ``self`` must be full."""
        return msgspec.structs.replace(
            self,
            base=base.sequence,
            parts={log_id: part for log_id, part in self.parts.items() if base.parts.get(log_id) != part},
            removed=tuple(sorted(base.parts.keys() - self.parts.keys())),
        )

    def label(self, log_id: str) -> str:
        """Return the name of a partition or journal for messages."""
        topic, _, number = log_id.partition("/")
        return f"{self.topics.get(topic, topic)}-{number}" if number else f"the journal of {topic}"

    def log_id(self, topic: str, partition: int) -> str | None:
        for topic_id, name in self.topics.items():
            if name == topic:
                log_id = f"{topic_id}/{partition}"
                return log_id if log_id in self.parts else None
        return None

    def record_count(self) -> int:
        return sum(part.end - part.start for log_id, part in self.parts.items() if "/" in log_id)

    def size_bytes(self) -> int:
        return sum(part.size for part in self.parts.values())

    def archived(self) -> dict[str, int]:
        """Return, by log id, how many bytes are only in the archive, because the backup could not read them there."""
        sizes = {log_id: sum(size for _, _, size, _ in part.archived) for log_id, part in self.parts.items()}
        return {log_id: size for log_id, size in sizes.items() if size}


class ManifestName(NamedTuple):
    sequence: int
    restore_point_ms: int
    base: int
    """The sequence number of the base. A full manifest has its own sequence number here."""
    run: str

    @property
    def file(self) -> str:
        return f"{self.sequence:010d}-{self.restore_point_ms:013d}-{self.base:010d}-{self.run}.json"

    @classmethod
    def parse(cls, name: str) -> ManifestName | None:
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]), int(match[3]), match[4])


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest, key: bytes | None = None) -> bytes:
    body = _encoder.encode(manifest)
    mac = "" if key is None else f" {mac_of(key, body)}"
    return body + f"\n{crc32c(body):08x}{mac}\n".encode()


def authenticity_of_manifest(raw: bytes, key: bytes | None) -> Authenticity:
    body, _, mac = _split(raw)
    return authenticity_of(body, mac, key)


def decode(raw: bytes, path: str) -> Manifest:
    """Decode a manifest. Raises ``BackupDamaged`` if it is damaged or has an invalid name."""
    body, crc, _ = _split(raw)
    if crc != f"{crc32c(body):08x}":
        raise _damaged(path, "the checksum does not match")
    try:
        fields = msgspec.json.decode(body, type=Mapping[str, msgspec.Raw])
        version = msgspec.json.decode(fields.get("format", b"0"), type=int)
        if version != FORMAT:
            raise BackupDamaged(
                f"{path} has format {version}; this release supports {FORMAT}",
                hint="use the release that wrote it",
            )
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def _split(raw: bytes) -> tuple[bytes, str, str]:
    """Split a manifest into its JSON, its checksum, and its MAC, which can be empty."""
    body, _, checks = raw.removesuffix(b"\n").rpartition(b"\n")
    crc, _, mac = checks.decode("ascii", "replace").partition(" ")
    return body, crc, mac


def _damaged(path: str, reason: str) -> BackupDamaged:
    return BackupDamaged(
        f"the manifest {path} is damaged: {reason}",
        hint="headrace backup check FOLDER finds the newest intact restore point",
    )


_KEY_BYTES_MIN = 32


class Authenticity(Enum):
    AUTHENTIC = "authentic"
    MISSING = "it has no MAC"
    WRONG = "its MAC is wrong: it was changed, or written with another key"
    UNCHECKED = "it has a MAC, but no key is set to verify it"


def mac_of(key: bytes, body: bytes) -> str:
    return hmac.new(key, b"headrace backup manifest\n" + body, "sha256").hexdigest()


def authenticity_of(body: bytes, mac: str, key: bytes | None) -> Authenticity:
    if not mac:
        return Authenticity.MISSING
    if key is None:
        return Authenticity.UNCHECKED
    return Authenticity.AUTHENTIC if hmac.compare_digest(mac_of(key, body), mac) else Authenticity.WRONG


def read_key(broker: BrokerSettings) -> bytes | None:
    """Return the configured key for MACs, or ``None``."""
    return read_secret(
        "broker.backup_key", broker.backup_key, broker.backup_key_file, bytes_min=_KEY_BYTES_MIN
    )
