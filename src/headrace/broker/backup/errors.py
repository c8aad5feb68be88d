"""Errors of backups.

HeadraceError
└── BackupError                HR-BACKUP            any other error; no data was restored
    ├── BackupUnavailable      HR-BACKUP-UNAVAILABLE    the folder is not available now; retry later
    ├── BackupOwnedByOther     HR-BACKUP-OTHER      another broker owns or writes to the folder
    ├── BackupDamaged          HR-BACKUP-DAMAGED    a piece or a manifest is damaged
    ├── BackupUnauthentic      HR-BACKUP-MAC        a manifest does not have the MAC of the configured key
    └── NoSuchRestorePoint     HR-BACKUP-RESTORE-POINT  the restore point does not exist
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "BackupDamaged",
    "BackupError",
    "BackupOwnedByOther",
    "BackupUnauthentic",
    "BackupUnavailable",
    "NoSuchRestorePoint",
]


class BackupError(HeadraceError):
    code = "HR-BACKUP"


class BackupUnavailable(BackupError):
    code = "HR-BACKUP-UNAVAILABLE"
    retriable = True


class BackupOwnedByOther(BackupError):
    code = "HR-BACKUP-OTHER"


class BackupDamaged(BackupError):
    code = "HR-BACKUP-DAMAGED"


class BackupUnauthentic(BackupError):
    code = "HR-BACKUP-MAC"


class NoSuchRestorePoint(BackupError):
    code = "HR-BACKUP-RESTORE-POINT"
