"""Errors that a person reads: what happened, with the values, and what to do next.

    HeadraceError                 a stable code, a message, an optional detail and hint
    ├── ConfigError               a setting or an argument does not fit            (HR-CONFIG-…)
    ├── DataDirError              the data directory cannot be used as it is       (HR-DATA-…)
    │   ├── DataDirInUse          another process holds it
    │   ├── FormatTooNew          written by a newer release
    │   └── DamagedState          metadata below its synced mark does not read back
    └── StorageError              a partition's file failed beneath us             (HR-LOG-…)
        ├── ArchiveUnavailable    a segment that was moved to the archive cannot be read from there
        ├── CorruptBatch          stored bytes below the synced mark fail their check
        ├── OffsetOutOfRange      the offset is not in the log
        └── PartitionFenced       a write or a sync failed; the partition takes no more

Errors of the Kafka protocol, which travel as numbers, live in ``headrace.wire.codes``.
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
    """A failure in the user's terms; ``retriable`` says whether trying again can help."""

    code = "HR-ERROR"
    retriable = False

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def facts(self) -> dict[str, object]:
        """All of it for a program; what is empty is left out."""
        told = {"code": self.code, "message": self.message, "detail": self.detail, "hint": self.hint}
        return {name: text for name, text in told.items() if text}

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
    """What lies in the archive cannot be had now; everything else can."""

    code = "HR-LOG-ARCHIVE"
    retriable = True

    def __init__(
        self, path: Path | str, first_offset: int, end_offset: int, reason: str, advice: str
    ) -> None:
        """``advice`` is what to do about this kind of archive."""
        what = f"offsets {first_offset} to {end_offset - 1} are" if end_offset else "old segments belong"
        super().__init__(
            f"{what} in the archive at {path}, which cannot be used: {reason}",
            hint=f"{advice}; nothing is lost, and all later offsets stay readable",
        )
        self.path = path


class CorruptBatch(StorageError):
    """A batch below the synced mark that no longer reads back; its neighbours still do."""

    code = "HR-LOG-CORRUPT"

    def __init__(self, path: Path | str, position: int, reason: str) -> None:
        super().__init__(
            f"damaged batch in {path} at byte {position}: {reason}",
            hint="the file's other batches stay readable; restore this one from a backup or skip past it",
        )
        self.path = path
        self.position = position


class OffsetOutOfRange(StorageError):
    code = "HR-LOG-OFFSET-GONE"

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(
            f"offset {offset} is outside the log, which holds {start} to {end}",
            hint=f"offsets {offset} to {start - 1} were deleted by retention; start again at {start}"
            if offset < start
            else f"the next record will have offset {end}",
        )
        self.offset = offset
        self.start = start
        self.end = end


class PartitionFenced(StorageError):
    """No further write is taken, so that nothing is ever acknowledged over a hole."""

    code = "HR-LOG-FENCED"
