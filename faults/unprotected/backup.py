"""The backup with one protection removed, in the broker's process. The oracle must detect each removal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from faults.patch import patch, patched

if TYPE_CHECKING:
    from headrace.broker.backup.manifest import Manifest, Part

__all__ = ["manifest_before_its_pieces", "partitions_at_different_points", "unvalidated_manifest_names"]

_LATER_S = 0.3
_APART_S = 0.02


def manifest_before_its_pieces() -> None:
    """The manifest is written before the files that it names."""
    from headrace.broker.backup.folder import BackupFolder
    from headrace.files import Buffer

    write = BackupFolder.write

    def write_later(self: BackupFolder, path: Path, chunks: Iterable[Buffer]) -> None:
        if path.suffix == ".json":
            write(self, path, chunks)
            return
        whole = [b"".join(chunks)]
        timer = threading.Timer(_LATER_S, write, (self, path, whole))
        timer.daemon = True
        timer.start()

    patch(BackupFolder, "write", write_later)


def partitions_at_different_points() -> None:
    """Partitions are copied one after the other, each at another point of the log."""
    from headrace.broker.backup.plan import Plan, plan_copy
    from headrace.broker.backup.writer import BackupWriter

    write_restore_point = BackupWriter._write_restore_point

    def copy_one_by_one(self: BackupWriter, plans: list[Plan], *arguments: Any) -> Any:
        sources = {source.log_id: source for source in self._sources()}
        fresh_plans: list[Plan] = []
        try:
            for plan in plans:
                time.sleep(_APART_S)
                source = sources.get(plan.log_id)
                fresh_plans.append((source and plan_copy(source, self._copies.get(plan.log_id))) or plan)
            return write_restore_point(self, fresh_plans, *arguments)
        finally:
            for plan in fresh_plans:
                plan.release()

    patch(BackupWriter, "_write_restore_point", copy_one_by_one)


@contextlib.contextmanager
def unvalidated_manifest_names() -> Iterator[None]:
    """Restores in this process accept any name in a manifest."""
    from headrace.broker.backup import folder

    with patched(folder, "decode", lambda raw, path: _decode_unvalidated(raw)):
        yield


def _decode_unvalidated(raw: bytes) -> Manifest:
    from headrace.broker.backup.manifest import Manifest, PastRestore

    body = msgspec.json.decode(raw.splitlines()[0])
    body["restore_point_ms"] = body.pop("moment_ms")
    body["removed"] = tuple(body.pop("gone", ()))
    return Manifest(
        **{
            **body,
            "parts": {log_id: _decode_unvalidated_part(part) for log_id, part in body["parts"].items()},
            "restored": tuple(PastRestore(**restored) for restored in body["restored"]),
        }
    )


def _decode_unvalidated_part(part: dict[str, Any]) -> Part:
    from headrace.broker.backup.manifest import Part, Piece, SegmentCopy, StateCopy

    return Part(
        **{
            **part,
            "segments": tuple(
                SegmentCopy(base, tuple(Piece(*piece) for piece in pieces))
                for base, pieces in part["segments"]
            ),
            "state": StateCopy(*part["state"]) if part["state"] else None,
        }
    )
