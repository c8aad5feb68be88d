"""Settings as a command finds them: flag, then environment, then ``headrace.toml``, then default; each with its origin.

Nothing is passed over in silence: a name that is not known and a value that does not fit are refused, with the place
where they were found.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.settings import Settings
from headrace.settings.errors import FileUnreadable, SettingMisfit, SettingUnknown
from headrace.settings.known import Known, known, nearest
from headrace.settings.secrets import masked

__all__ = ["DEFAULT", "FILE", "Flag", "Loaded", "Shown", "load"]

FILE = "headrace.toml"
DEFAULT = "default"
# In the order in which they count; the last is what other Kafka tools read as well.
_BOOTSTRAP = ("HEADRACE_LOG__BOOTSTRAP_SERVERS", "HEADRACE_BOOTSTRAP_SERVERS", "KAFKA_BOOTSTRAP_SERVERS")


@dataclass(frozen=True, slots=True)
class Flag:
    """A value from the command line: ``Flag("spark.master", "local[2]", "--master")``; None where none was given."""

    key: str
    value: object
    option: str


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting for a person to see."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, str]
    """Where each value comes from that is not a default, by its name; of a table, by ``table.name``."""
    file: Path | None

    def shown(self) -> Iterator[Shown]:
        """Every setting, also those that nobody has set; secrets are masked."""
        for one in known().values():
            value = _value_of(self.settings, one.key)
            if not one.is_table:
                text = str(value) if isinstance(value, Path) else value
                yield Shown(one.key, masked(one.key, text), self.origins.get(one.key, DEFAULT))
            elif value:
                for name, text in sorted(value.items()):
                    key = f"{one.key}.{name}"
                    yield Shown(key, masked(key, text), self.origins.get(key, DEFAULT))
            else:
                yield Shown(one.key, None, DEFAULT)


@dataclass(frozen=True, slots=True)
class _Given:
    key: str
    value: object
    origin: str
    as_text: bool
    """Whether numbers come as texts, as they do from outside of a file."""
    base: Path = Path()
    """What relative paths are relative to."""


def load(
    flags: Iterable[Flag] = (),
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """``file`` must be there; without one, ``headrace.toml`` of the current directory is taken if it is."""
    environment = os.environ if environment is None else environment
    found = file or (Path(FILE) if Path(FILE).is_file() else None)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for given in (
        *(() if found is None else _from_file(found)),
        *_from_environment(environment),
        *(_Given(flag.key, flag.value, flag.option, True) for flag in flags if flag.value not in (None, {})),
    ):
        one = known().get(given.key)
        assert one is not None, given.key
        value = _converted(one, given)
        if one.is_table:
            values[one.key] = {**values.get(one.key, {}), **value}
            origins.update({f"{one.key}.{name}": given.origin for name in value})
        else:
            values[one.key] = value
            origins[one.key] = given.origin
    return Loaded(_built(values), origins, found)


def _from_file(path: Path) -> Iterator[_Given]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileUnreadable(
            f"{path} cannot be read: {error.strerror or error}", hint="name another file with --settings"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileUnreadable(f"{path} is not TOML: {error}", hint="mend the place that it names") from error
    sections = {key.partition(".")[0] for key in known() if "." in key}
    for name, value in content.items():
        if name in sections and isinstance(value, dict):
            for key, inner in value.items():
                yield _in_file(path, f"{name}.{key}", inner)
        else:
            yield _in_file(path, name, value)


def _in_file(path: Path, key: str, value: object) -> _Given:
    if key not in known():
        raise _unknown(f"{path}: {key}", key, "")
    return _Given(key, value, str(path), False, path.parent)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    variables = {one.variable: one for one in known().values()}
    for name in reversed(_BOOTSTRAP):
        if environment.get(name):
            yield _Given("log.bootstrap_servers", environment[name], name, True)
    for name, text in environment.items():
        if not name.startswith("HEADRACE_") or not text or name in _BOOTSTRAP:
            continue
        one = variables.get(name)
        if one is not None:
            yield _Given(one.key, text, name, True)
        elif "__" in name:
            key = name.removeprefix("HEADRACE_").lower().replace("__", ".")
            raise _unknown(f"the environment variable {name}", key, "HEADRACE_")


def _unknown(what: str, key: str, prefix: str) -> SettingUnknown:
    meant = nearest(key)
    name = None if meant is None else known()[meant].variable if prefix else meant
    return SettingUnknown(
        f"{what} is not a setting",
        hint=(f"did you mean {name}? " if name else "") + "headrace config lists all that there are",
    )


def _converted(one: Known, given: _Given) -> Any:
    if one.is_table:
        return _table(one, given)
    value = given.value
    if one.is_path and isinstance(value, str | Path) and str(value):
        return given.base / Path(value).expanduser()
    try:
        return msgspec.convert(value, one.type, strict=not given.as_text)
    except msgspec.ValidationError:
        raise _misfit(one, given) from None


def _table(one: Known, given: _Given) -> dict[str, str]:
    value = given.value
    if given.as_text and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _misfit(one, given, 'a JSON object, e.g. {"name": "text"}') from None
    if not isinstance(value, dict):
        raise _misfit(one, given)
    return dict(_texts(value, "", one, given))


def _texts(table: dict[str, Any], prefix: str, one: Known, given: _Given) -> Iterator[tuple[str, str]]:
    """Dotted names, which TOML takes for tables in tables, become one name again."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{prefix}{name}.", one, given)
        elif isinstance(value, bool):
            yield prefix + name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield prefix + name, str(value)
        else:
            raise _misfit(
                replace(one, key=f"{one.key}.{prefix}{name}"), replace(given, value=value), "a text"
            )


def _misfit(one: Known, given: _Given, wanted: str = "") -> SettingMisfit:
    where = f"{given.origin}: {one.key}" if not given.as_text else f"{one.key}, from {given.origin},"
    # A table is not quoted: there may be a password in it.
    shown = "" if one.is_table else f"is {masked(one.key, given.value)!r}, and "
    return SettingMisfit(f"{where} {shown}must be {wanted or one.wanted()}")


def _built(values: Mapping[str, Any]) -> Settings:
    settings = Settings()
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    plain = sections.pop("", {})
    whole = {section: replace(getattr(settings, section), **given) for section, given in sections.items()}
    return replace(settings, **plain, **whole)


def _value_of(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value
