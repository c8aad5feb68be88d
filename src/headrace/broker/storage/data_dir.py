"""The data directory: its lock, its format, and the counters whose values must never be used twice.

    lock             locked while a broker runs
    headrace.json    format, cluster id, number of starts, next producer id, last trusted time, line (``Identity``),
                     backup folder, and a checksum; each change replaces the whole file
    restored.json    the restores from a backup, with the end of each partition (``backup.restore_history``)
    metadata/        the journal of topics and settings
    groups/          the journal of groups, committed offsets and transactions
    topics/<topic id, 32 hex digits>/<partition>/

Paths never contain names that users choose. If the directory has other files but no ``headrace.json``, the broker does
not start. Otherwise it would treat existing data as an empty directory.
"""

from __future__ import annotations

import base64
import secrets
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from headrace.checksum import crc32c
from headrace.errors import DamagedState, DataDirError, DataDirInUse, FormatTooNew
from headrace.files import Files, LockHeld
from headrace.log.segment import write_whole

__all__ = ["FORMAT", "DataDir", "Identity", "new_line", "write_identity"]

FORMAT = 1
_NAME = "headrace.json"
_LOCK = "lock"
_PRODUCER_BLOCK = 1000
_IGNORED = {_LOCK, "lost+found", f"{_NAME}.new"}


@dataclass(frozen=True, slots=True)
class Identity:
    format: int
    cluster_id: str
    starts: int = 0
    next_producer_id: int = 0
    last_trusted_ms: int = 0
    line: str = ""
    """The id of this data directory's *line*, which is its history of writes. A restore from a backup begins a new
    line.
    """
    backup: str = ""
    """The folder to which the broker wrote its last backup."""


def new_line() -> str:
    return secrets.token_hex(8)


class DataDir:
    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path
        self.metadata = path / "metadata"
        self.groups = path / "groups"
        self.topics = path / "topics"
        try:
            if not files.exists(path / _NAME):
                # On the first start, sync the parent, so that the directory itself survives a power loss.
                files.make_dir(path)
                files.sync_dir(path.parent)
            self._lock = files.lock(path / _LOCK)
        except LockHeld:
            raise DataDirInUse(
                f"the data directory {path} is in use by another broker",
                hint="stop that broker first, or choose another directory with --data",
            ) from None
        except OSError as error:
            raise DataDirError(
                f"cannot use the data directory {path}: {error.strerror or error}",
                hint="choose a writable directory with --data",
            ) from error
        try:
            self.identity = self._load()
            for directory in (self.metadata, self.groups, self.topics):
                files.make_dir(directory)
            files.sync_dir(path)
        except BaseException:
            self._lock.release()
            raise
        self._next_producer_id = self.identity.next_producer_id

    def _load(self) -> Identity:
        path = self.path / _NAME
        if not self._files.exists(path):
            others = sorted(set(self._files.list(self.path)) - _IGNORED)
            if others:
                raise DamagedState(
                    f"{self.path} has {', '.join(others[:5])}, but no {_NAME}",
                    detail="the directory is not a data directory, or its files are damaged",
                    hint="choose an empty directory with --data, or restore the data directory from a backup",
                )
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            identity = Identity(FORMAT, cluster_id, line=cluster_id)
            self._save(identity)
            return identity
        file = self._files.open(path)
        try:
            raw = file.pread(1 << 16, 0)
        finally:
            file.close()
        return _parse(raw, path)

    def _save(self, identity: Identity) -> None:
        write_identity(self._files, self.path, identity)
        self.identity = identity

    def record_start(self) -> int:
        """Increment the number of starts on disk. Returns the number of earlier starts, which is the leader epoch."""
        line = self.identity.line or self.identity.cluster_id
        self._save(replace(self.identity, starts=self.identity.starts + 1, line=line))
        return self.identity.starts - 1

    def save_time(self, trusted_ms: int) -> None:
        self._save(replace(self.identity, last_trusted_ms=trusted_ms))

    def record_backup(self, folder: Path) -> None:
        """Store the path of the backup folder, so that an unmounted, empty folder does not become a new backup."""
        if self.identity.backup != str(folder):
            self._save(replace(self.identity, backup=str(folder)))

    def next_producer_id(self) -> int:
        """Return a producer id that was never used before. Blocks of ids are reserved on disk."""
        if self._next_producer_id >= self.identity.next_producer_id:
            self._save(replace(self.identity, next_producer_id=self._next_producer_id + _PRODUCER_BLOCK))
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    def close(self) -> None:
        self._lock.release()


def write_identity(files: Files, directory: Path, identity: Identity) -> None:
    body = asdict(identity)
    body["check"] = crc32c(msgspec.json.encode(body))
    write_whole(files, directory / _NAME, msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n")
    files.sync_dir(directory)


def _parse(raw: bytes, path: Path) -> Identity:
    try:
        body = msgspec.json.decode(raw, type=dict[str, int | str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"invalid JSON: {error}") from error
    version = body.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise FormatTooNew(
            f"the data directory {path.parent} has format {version}; this release supports up to {FORMAT}",
            hint="use the release that wrote it, or a later one",
        )
    check = body.pop("check", None)
    if check != crc32c(msgspec.json.encode(body)):
        raise _damaged(path, "the checksum does not match")
    try:
        return msgspec.convert(body, Identity)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, detail: str) -> DamagedState:
    return DamagedState(
        f"{path} is damaged", detail=detail, hint="restore it from a backup; the broker has not changed it"
    )
