"""Loads the settings of a command, and remembers the origin of each value.

An option overrides the environment, the environment overrides ``headrace.toml``, and the file overrides the default.
An unknown name or an invalid value is an error that names its origin.

    ConfigError           HR-CONFIG-INVALID
    ├── SettingUnknown    HR-CONFIG-UNKNOWN   no setting has this name
    ├── SettingTypeError  HR-CONFIG-TYPE      the value has the wrong type
    └── FileUnreadable    HR-CONFIG-FILE      the file cannot be read, or is not TOML
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ConfigError
from headrace.settings import Settings
from headrace.settings.definitions import Definition, definitions, nearest
from headrace.settings.secrets import masked

__all__ = [
    "DEFAULT",
    "FILE",
    "FileUnreadable",
    "Flag",
    "Loaded",
    "SettingTypeError",
    "SettingUnknown",
    "ShownSetting",
    "load",
]

FILE = "headrace.toml"
DEFAULT = "default"
# In order of precedence. Other Kafka tools read the last variable too.
_BOOTSTRAP = ("HEADRACE_LOG__BOOTSTRAP_SERVERS", "HEADRACE_BOOTSTRAP_SERVERS", "KAFKA_BOOTSTRAP_SERVERS")


class SettingUnknown(ConfigError):
    code = "HR-CONFIG-UNKNOWN"


class SettingTypeError(ConfigError):
    code = "HR-CONFIG-TYPE"


class FileUnreadable(ConfigError):
    code = "HR-CONFIG-FILE"


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting from an option: ``Flag("spark.master", "local[2]", "--master")``. The value is None if the option is
    absent.
    """

    key: str
    value: object
    option: str


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting to print, with secrets masked."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, str]
    """The origin of each value that is not a default, by setting. The key of a table's entry is ``table.name``."""
    file: Path | None

    def shown(self) -> Iterator[ShownSetting]:
        """Every setting, defaults included, with secrets masked."""
        for definition in definitions().values():
            value = _value_of(self.settings, definition.key)
            if not definition.is_table:
                text = str(value) if isinstance(value, Path) else value
                origin = self.origins.get(definition.key, DEFAULT)
                yield ShownSetting(definition.key, masked(definition.key, text), origin)
            elif value:
                for name, text in sorted(value.items()):
                    key = f"{definition.key}.{name}"
                    yield ShownSetting(key, masked(key, text), self.origins.get(key, DEFAULT))
            else:
                yield ShownSetting(definition.key, None, DEFAULT)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """One value from one origin."""

    key: str
    value: object
    origin: str
    as_text: bool
    """Whether numbers are strings that must be parsed, as in options and environment variables."""
    base: Path = Path()
    """The folder that relative paths are relative to."""


def load(
    flags: Iterable[Flag] = (),
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Load the settings. ``file`` must exist. Without ``file``, read ``headrace.toml`` of the current directory if that
    file exists.
    """
    environment = os.environ if environment is None else environment
    path = file or (Path(FILE) if Path(FILE).is_file() else None)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for assignment in (
        *(() if path is None else _from_file(path)),
        *_from_environment(environment),
        *(
            _Assignment(flag.key, flag.value, flag.option, True)
            for flag in flags
            if flag.value not in (None, {})
        ),
    ):
        definition = definitions().get(assignment.key)
        assert definition is not None, assignment.key
        value = _convert(definition, assignment)
        if definition.is_table:
            values[definition.key] = {**values.get(definition.key, {}), **value}
            origins.update({f"{definition.key}.{name}": assignment.origin for name in value})
        else:
            values[definition.key] = value
            origins[definition.key] = assignment.origin
    return Loaded(_build(values), origins, path)


def _from_file(path: Path) -> Iterator[_Assignment]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileUnreadable(
            f"cannot read {path}: {error.strerror or error}", hint="name another file with --settings"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileUnreadable(f"{path} is not TOML: {error}", hint="correct that line of the file") from error
    sections = {key.partition(".")[0] for key in definitions() if "." in key}
    for name, value in content.items():
        if name in sections and isinstance(value, dict):
            for key, inner in value.items():
                yield _in_file(path, f"{name}.{key}", inner)
        else:
            yield _in_file(path, name, value)


def _in_file(path: Path, key: str, value: object) -> _Assignment:
    if key not in definitions():
        raise _unknown(f"{path}: {key}", key, "")
    return _Assignment(key, value, str(path), False, path.parent)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Assignment]:
    variables = {definition.variable: definition for definition in definitions().values()}
    for name in reversed(_BOOTSTRAP):
        if environment.get(name):
            yield _Assignment("log.bootstrap_servers", environment[name], name, True)
    for name, text in environment.items():
        if not name.startswith("HEADRACE_") or not text or name in _BOOTSTRAP:
            continue
        definition = variables.get(name)
        if definition is not None:
            yield _Assignment(definition.key, text, name, True)
        elif "__" in name:
            key = name.removeprefix("HEADRACE_").lower().replace("__", ".")
            raise _unknown(f"the environment variable {name}", key, "HEADRACE_")


def _unknown(what: str, key: str, prefix: str) -> SettingUnknown:
    similar_name = nearest(key)
    name = None if similar_name is None else definitions()[similar_name].variable if prefix else similar_name
    return SettingUnknown(
        f"{what} is not a setting",
        hint=(f"did you mean {name}? " if name else "") + "headrace config lists all settings",
    )


def _convert(definition: Definition, assignment: _Assignment) -> Any:
    if definition.is_table:
        return _table(definition, assignment)
    value = assignment.value
    if definition.is_path and isinstance(value, str | Path) and str(value):
        return assignment.base / Path(value).expanduser()
    try:
        return msgspec.convert(value, definition.type, strict=not assignment.as_text)
    except msgspec.ValidationError:
        raise _misfit(definition, assignment) from None


def _table(definition: Definition, assignment: _Assignment) -> dict[str, str]:
    value = assignment.value
    if assignment.as_text and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _misfit(definition, assignment, 'a JSON object, e.g. {"name": "value"}') from None
    if not isinstance(value, dict):
        raise _misfit(definition, assignment)
    return dict(_flatten(value, "", definition, assignment))


def _flatten(
    table: dict[str, Any], prefix: str, definition: Definition, assignment: _Assignment
) -> Iterator[tuple[str, str]]:
    """Join dotted names, which TOML parses as nested tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.", definition, assignment)
        elif isinstance(value, bool):
            yield prefix + name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield prefix + name, str(value)
        else:
            inner = replace(definition, key=f"{definition.key}.{prefix}{name}")
            raise _misfit(inner, replace(assignment, value=value), "a string")


def _misfit(definition: Definition, assignment: _Assignment, expected: str = "") -> SettingTypeError:
    subject = (
        f"{definition.key}, from {assignment.origin},"
        if assignment.as_text
        else f"{assignment.origin}: {definition.key}"
    )
    # Do not show the value of a table, because it can contain a password.
    actual_text = "" if definition.is_table else f"is {masked(definition.key, assignment.value)!r}, but "
    return SettingTypeError(f"{subject} {actual_text}must be {expected or definition.type_text()}")


def _build(values: Mapping[str, Any]) -> Settings:
    settings = Settings()
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    top_level = sections.pop("", {})
    replaced = {
        section: replace(getattr(settings, section), **fields) for section, fields in sections.items()
    }
    return replace(settings, **top_level, **replaced)


def _value_of(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value
