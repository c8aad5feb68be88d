"""Errors that a person reads: what happened, with the values, and what to do next.

    HeadraceError                 a stable code, a message, an optional detail and hint
    ├── ConfigError               a setting or an argument is invalid              (HR-CONFIG-…)
    ├── DataDirError              the data directory cannot be used as it is       (HR-DATA-…)
    │   ├── DataDirInUse          another process uses it
    │   ├── FormatTooNew          a newer release wrote it
    │   └── DamagedState          metadata below its synced mark is damaged
    └── StorageError              a file of a partition failed                     (HR-LOG-…)
        ├── ArchiveUnavailable    a segment that was moved to the archive cannot be read from there
        ├── CorruptBatch          stored bytes below the synced mark fail their check
        ├── OffsetOutOfRange      the offset is not in the log
        └── PartitionFenced       a write or a sync failed; the partition refuses writes

``headrace.wire.codes`` has the error codes of the Kafka protocol.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ArchiveUnavailable",
    "ConfigError",
    "CorruptBatch",
    "DamagedState",
    "DataDirError",
    "DataDirInUse",
    "FormatTooNew",
    "HeadraceError",
    "OffsetOutOfRange",
    "PartitionFenced",
    "StorageError",
]


class HeadraceError(Exception):
    """A failure in the user's terms. ``retriable`` is True if a retry can succeed."""

    code = "HR-ERROR"
    retriable = False

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def facts(self) -> dict[str, object]:
        """The non-empty fields, for programs."""
        fields = {"code": self.code, "message": self.message, "detail": self.detail, "hint": self.hint}
        return {name: text for name, text in fields.items() if text}

    def __str__(self) -> str:
        lines = [f"{self.message} [{self.code}]"]
        if self.detail:
            lines.append(f"  detail: {self.detail}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class ConfigError(HeadraceError):
    code = "HR-CONFIG-INVALID"


class DataDirError(HeadraceError):
    code = "HR-DATA-DIR"


class DataDirInUse(DataDirError):
    code = "HR-DATA-IN-USE"


class FormatTooNew(DataDirError):
    code = "HR-DATA-FORMAT"


class DamagedState(DataDirError):
    code = "HR-DATA-DAMAGED"


class StorageError(HeadraceError):
    code = "HR-LOG-STORAGE"


class ArchiveUnavailable(StorageError):
    """A segment in the archive cannot be read now. All other segments can be read."""

    code = "HR-LOG-ARCHIVE"
    retriable = True

    def __init__(
        self, path: Path | str, first_offset: int, end_offset: int, reason: str, advice: str
    ) -> None:
        """``advice`` is what the user can do with this kind of archive."""
        what = f"offsets {first_offset} to {end_offset - 1} are" if end_offset else "old segments belong"
        super().__init__(
            f"{what} in the archive at {path}, which cannot be used: {reason}",
            hint=f"{advice}; nothing is lost, and all later offsets stay readable",
        )
        self.path = path


class CorruptBatch(StorageError):
    """A damaged batch below the synced mark (the offset up to which the disk has the partition). The batches around it
    are readable.
    """

    code = "HR-LOG-CORRUPT"

    def __init__(self, path: Path | str, position: int, reason: str) -> None:
        super().__init__(
            f"damaged batch in {path} at byte {position}: {reason}",
            hint="the other batches of the file stay readable; restore this batch from a backup, or skip it",
        )
        self.path = path
        self.position = position


class OffsetOutOfRange(StorageError):
    code = "HR-LOG-OFFSET-GONE"

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(
            f"offset {offset} is outside the log, which starts at {start} and ends at {end}",
            hint=f"offsets {offset} to {start - 1} were deleted by retention; start again at {start}"
            if offset < start
            else f"the next record will have offset {end}",
        )
        self.offset = offset
        self.start = start
        self.end = end


class PartitionFenced(StorageError):
    """The partition refuses writes, so that no record is acknowledged after a gap."""

    code = "HR-LOG-FENCED"
