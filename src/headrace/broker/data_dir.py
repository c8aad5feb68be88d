"""The data directory: who owns it, which format it has, and the few numbers that must never be given out
twice.

    lock             held while a broker runs
    headrace.json    format, cluster id, number of starts, next producer id, last trusted time, line, backup;
                     replaced whole, with a check of its own
    restored.json    that it came from a backup, and where each partition ended then (``backup.history``)
    metadata/        the journal of topics and settings
    groups/          the journal of groups, committed offsets and transactions
    topics/<topic id, 32 hex digits>/<partition>/

Names that users choose never become paths. A directory that holds something, but not this file, is refused:
to start empty over somebody's data would be the worst answer to damage.
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
    """Of all that was ever written here, one after the other. What is restored from a backup begins another."""
    backup: str = ""
    """The folder in which its backup was last found."""


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
                # Perhaps a first start: the directory's own name must outlast a power loss as well.
                files.make_dir(path)
                files.sync_dir(path.parent)
            self._lock = files.lock(path / _LOCK)
        except LockHeld:
            raise DataDirInUse(
                f"the data directory {path} is in use by another broker",
                hint="stop that broker first, or give this one a directory of its own with --data",
            ) from None
        except OSError as error:
            raise DataDirError(
                f"the data directory {path} cannot be used: {error.strerror or error}",
                hint="give a directory that can be created and written to with --data",
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
            strangers = sorted(set(self._files.list(self.path)) - _IGNORED)
            if strangers:
                raise DamagedState(
                    f"{self.path} holds {', '.join(strangers[:5])}, but no {_NAME}",
                    detail="it is not a data directory of this broker, or a damaged one",
                    hint="give an empty directory with --data, or restore the file from a backup",
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

    def note_start(self) -> int:
        """Count this start, durably; the number before it is the leader epoch of the run."""
        line = self.identity.line or self.identity.cluster_id
        self._save(replace(self.identity, starts=self.identity.starts + 1, line=line))
        return self.identity.starts - 1

    def note_time(self, trusted_ms: int) -> None:
        self._save(replace(self.identity, last_trusted_ms=trusted_ms))

    def note_backup(self, folder: Path) -> None:
        """Remember where the backup is, so that an empty folder of that name is not taken for a new one."""
        if self.identity.backup != str(folder):
            self._save(replace(self.identity, backup=str(folder)))

    def next_producer_id(self) -> int:
        """A producer id that no start of this broker gives out again; ids are reserved on disk by blocks."""
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
        raise _damaged(path, f"it is not what this broker writes: {error}") from error
    found = body.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise FormatTooNew(
            f"the data directory {path.parent} has format {found}, and this release reads up to {FORMAT}",
            hint="start it with the release that wrote it, or a later one",
        )
    check = body.pop("check", None)
    if check != crc32c(msgspec.json.encode(body)):
        raise _damaged(path, "its check does not match")
    try:
        return msgspec.convert(body, Identity)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, detail: str) -> DamagedState:
    return DamagedState(
        f"{path} is damaged", detail=detail, hint="restore it from a backup; nothing was changed"
    )
