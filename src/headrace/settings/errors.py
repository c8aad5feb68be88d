"""What is wrong with a setting, and where it was made.

ConfigError           HR-CONFIG-INVALID
├── SettingUnknown    HR-CONFIG-UNKNOWN   there is no setting of that name
├── SettingMisfit     HR-CONFIG-TYPE      it has a value that it cannot have
└── FileUnreadable    HR-CONFIG-FILE      the file is not there, or is not TOML
"""

from __future__ import annotations

from headrace.errors import ConfigError

__all__ = ["FileUnreadable", "SettingMisfit", "SettingUnknown"]


class SettingUnknown(ConfigError):
    code = "HR-CONFIG-UNKNOWN"


class SettingMisfit(ConfigError):
    code = "HR-CONFIG-TYPE"


class FileUnreadable(ConfigError):
    code = "HR-CONFIG-FILE"
