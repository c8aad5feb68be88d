"""A folder with the same Delta table in it, of which the files are shared: they never change once they are written."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.private import DIR_MODE, make_private_dir
from headrace.views.catalog import sync_folder, write_synced
from headrace.views.delta.log import LOG
from headrace.views.delta.table import LakeTable

__all__ = ["copy_table"]


def copy_table(old: Path, new: Path) -> None:
    """``new`` is made, with the last version whose files are all there. Raises FileNotFoundError if ``old`` is gone.

    The log is taken first: the files of its newest version were written before it, and of those that its writer
    removes meanwhile, that version has none.
    """
    make_private_dir(new)
    (new / LOG).mkdir(DIR_MODE)
    for path in sorted((old / LOG).iterdir()):
        if path.suffix == ".json" or path.name.endswith(".checkpoint.parquet"):
            _share(path, new / LOG / path.name)
        elif path.name == "_last_checkpoint":
            # Written over again and again; without it the log is listed.
            write_synced(new / LOG / path.name, path.read_bytes())
    for path in old.glob("*.parquet"):
        _share(path, new / path.name)
    sync_folder(new / LOG)
    sync_folder(new)
    sync_folder(new.parent)
    if LakeTable(new).has_lost_files():
        raise FileNotFoundError(f"{old} has lost files")


def _share(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except FileNotFoundError:
        if not old.parent.exists():
            raise
        # Removed by its writer, since no version needs it any more.
