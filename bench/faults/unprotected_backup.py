"""The backup with one protection taken out, in the broker's process: the oracle must notice every one of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from headrace.broker.backup.manifest import Manifest, Part

__all__ = ["believed_names", "no_manifest_behind_its_pieces", "no_one_moment"]

_LATER_S = 0.3
_APART_S = 0.02


def no_manifest_behind_its_pieces() -> None:
    """Pieces are written at leisure; the manifest that names them does not wait for that."""
    from headrace.broker.backup.folder import BackupFolder
    from headrace.files import Buffer

    write = BackupFolder.write

    def later(self: BackupFolder, path: Path, chunks: Iterable[Buffer]) -> None:
        if path.suffix == ".json":
            write(self, path, chunks)
            return
        whole = [b"".join(chunks)]
        timer = threading.Timer(_LATER_S, write, (self, path, whole))
        timer.daemon = True
        timer.start()

    BackupFolder.write = later  # type: ignore[method-assign]


def no_one_moment() -> None:
    """Each partition is taken as it is when its turn to be copied comes."""
    from headrace.broker.backup.cut import Plan, take
    from headrace.broker.backup.keeper import BackupKeeper

    carry_out = BackupKeeper._carry_out

    def one_by_one(self: BackupKeeper, plans: list[Plan], *arguments: Any) -> Any:
        sources = {source.place: source for source in self._sources()}
        taken: list[Plan] = []
        try:
            for plan in plans:
                time.sleep(_APART_S)
                source = sources.get(plan.place)
                taken.append((source and take(source, self._known.get(plan.place))) or plan)
            return carry_out(self, taken, *arguments)
        finally:
            for plan in taken:
                plan.let_go()

    BackupKeeper._carry_out = one_by_one  # type: ignore[method-assign]


@contextlib.contextmanager
def believed_names() -> Iterator[None]:
    """Restores in this process take any name of a manifest."""
    from headrace.broker.backup import folder

    decode = folder.decode
    vars(folder)["decode"] = lambda raw, where: _believed(raw)
    try:
        yield
    finally:
        vars(folder)["decode"] = decode


def _believed(raw: bytes) -> Manifest:
    from headrace.broker.backup.manifest import Manifest, Restored

    body = msgspec.json.decode(raw.splitlines()[0])
    return Manifest(
        **{
            **body,
            "parts": {place: _believed_part(part) for place, part in body["parts"].items()},
            "restored": tuple(Restored(**one) for one in body["restored"]),
        }
    )


def _believed_part(part: dict[str, Any]) -> Part:
    from headrace.broker.backup.manifest import Part, Piece, Run, StateCopy

    return Part(
        **{
            **part,
            "segments": tuple(
                Run(base, tuple(Piece(*piece) for piece in pieces)) for base, pieces in part["segments"]
            ),
            "state": StateCopy(*part["state"]) if part["state"] else None,
        }
    )
