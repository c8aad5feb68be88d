"""The backup with one protection taken out, in the broker's process: the oracle must notice every one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["no_manifest_behind_its_pieces", "no_one_moment"]

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
