"""Whether a broker that starts may use the folder that it was given."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.backup.books import Books
from headrace.broker.backup.errors import BackupAway
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.keeper import BackupKeeper
from headrace.broker.data_dir import DataDir
from headrace.errors import ConfigError
from headrace.files import Files

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["open_backup"]

_log = logging.getLogger("headrace.broker")


def open_backup(broker: Broker, data_dir: DataDir, path: Path | None, files: Files) -> BackupKeeper | None:
    """The start is refused where the folder is another broker's. One that was ours and is away may come back."""
    if path is None:
        return None
    path = path.absolute()
    if path == data_dir.path.absolute() or data_dir.path.absolute() in path.parents:
        raise ConfigError(
            f"the backup folder {path} is in the data directory {data_dir.path}, and would be lost with it",
            hint="give a folder on another disk with --backup, or an object store's mount",
        )
    folder = BackupFolder(path, files, key=broker.settings.backup_key)
    books = Books(folder, data_dir)
    try:
        books.expect_newer(books.expect_ours())
    except (BackupAway, OSError) as error:
        if data_dir.identity.backup != str(path):
            raise ConfigError(
                f"the backup folder {path} cannot be used: {error}",
                hint="make it, or mount it, before the broker is started with it for the first time",
            ) from error
        _log.warning("%s; the broker starts all the same, and ships when it is back", error)
    return BackupKeeper(broker, folder, books)
