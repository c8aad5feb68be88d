"""What is wrong with a backup, or with what was asked of it.

HeadraceError
└── BackupError                HR-BACKUP            nothing was restored
    ├── BackupAway             HR-BACKUP-AWAY       the folder cannot be used now; that may pass
    ├── BackupOfAnother        HR-BACKUP-OTHER      the folder is another broker's, or another one writes to it
    ├── BackupDamaged          HR-BACKUP-DAMAGED    a piece or a manifest is not what was written
    ├── BackupUnauthentic      HR-BACKUP-MAC        a manifest without the MAC of the configured key
    └── NoSuchMoment           HR-BACKUP-MOMENT     there is no manifest of what was asked for
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "BackupAway",
    "BackupDamaged",
    "BackupError",
    "BackupOfAnother",
    "BackupUnauthentic",
    "NoSuchMoment",
]


class BackupError(HeadraceError):
    code = "HR-BACKUP"


class BackupAway(BackupError):
    code = "HR-BACKUP-AWAY"
    retriable = True


class BackupOfAnother(BackupError):
    code = "HR-BACKUP-OTHER"


class BackupDamaged(BackupError):
    code = "HR-BACKUP-DAMAGED"


class BackupUnauthentic(BackupError):
    code = "HR-BACKUP-MAC"


class NoSuchMoment(BackupError):
    code = "HR-BACKUP-MOMENT"
