"""A configuration key: its name, type, default and valid values.

Values are sent and stored as text. ``ConfigKey.normal`` parses a text as Kafka does: it ignores leading and trailing
whitespace and the case of booleans, and splits lists at commas. It returns the value in normal form, so that equal
values have equal texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from headrace.errors import ConfigError

__all__ = [
    "VALUE_CHARS_MAX",
    "Check",
    "ConfigKey",
    "ConfigType",
    "Synonym",
    "at_least",
    "between",
    "each_of",
    "gzip_level",
    "items_of",
    "one_of",
    "throttled_replicas",
]

VALUE_CHARS_MAX = 16_384

Check = Callable[[str], str | None]
"""Takes a value in normal form. Returns the reason why it is invalid, or ``None`` if it is valid."""


class ConfigType(IntEnum):
    """The types of configuration values, with the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that sets the default of a topic key. ``factor`` converts its unit to the topic key's unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A configuration key.

    ``has_effect`` is false for a key that the broker accepts but that has no effect. DescribeConfigs returns
    ``internal`` keys only for topics that set them. ``dynamic`` broker keys can change at run time.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Check | None = None
    synonyms: tuple[Synonym, ...] = ()
    has_effect: bool = True
    internal: bool = False
    dynamic: bool = True

    @property
    def documentation(self) -> str:
        return (
            self.doc
            if self.has_effect
            else f"{self.doc} Accepted for compatibility with Kafka: it has no effect on this broker."
        )

    def normal(self, text: str) -> str:
        """Return ``text`` in normal form. Raises ``ConfigError`` if it is not a valid value of this key."""
        if len(text) > VALUE_CHARS_MAX:
            raise ConfigError(f"{self.name}: the value has {len(text)} characters (limit {VALUE_CHARS_MAX})")
        value = _PARSERS[self.type](text.strip())
        if value is None:
            raise ConfigError(f"{self.name}: {text.strip()!r} is not {_KINDS[self.type]}")
        fault = self.check(value) if self.check is not None else None
        if fault is not None:
            raise ConfigError(f"{self.name}: invalid value {value!r}: {fault}")
        return value


_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


def _integer(bits: int) -> Callable[[str], str | None]:
    def read(text: str) -> str | None:
        if _INTEGER.fullmatch(text) is None:
            return None
        value = int(text)
        return str(value) if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None

    return read


def _boolean(text: str) -> str | None:
    lowered = text.lower()
    return lowered if lowered in ("true", "false") else None


def _decimal(text: str) -> str | None:
    return repr(float(text)) if _DECIMAL.fullmatch(text) is not None else None


def _list(text: str) -> str:
    return ",".join(dict.fromkeys(items_of(text)))


def _string(text: str) -> str:
    return text


_PARSERS: dict[ConfigType, Callable[[str], str | None]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: _string,
    ConfigType.INT: _integer(32),
    ConfigType.SHORT: _integer(16),
    ConfigType.LONG: _integer(64),
    ConfigType.DOUBLE: _decimal,
    ConfigType.LIST: _list,
}

_KINDS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a string",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list",
}


def items_of(text: str) -> list[str]:
    """Return the items of a list value, without surrounding whitespace and without empty items."""
    return [item for part in text.split(",") if (item := part.strip())]


def at_least(lowest: int) -> Check:
    def check(value: str) -> str | None:
        return None if int(value) >= lowest else f"it must be at least {lowest}"

    return check


def between(lowest: float, highest: float) -> Check:
    def check(value: str) -> str | None:
        return None if lowest <= float(value) <= highest else f"it must be between {lowest} and {highest}"

    return check


def one_of(*allowed: str) -> Check:
    def check(value: str) -> str | None:
        return None if value in allowed else f"it must be one of {', '.join(allowed)}"

    return check


def each_of(*allowed: str) -> Check:
    def check(value: str) -> str | None:
        unknown = set(items_of(value)) - set(allowed)
        return f"each item must be one of {', '.join(allowed)}" if unknown else None

    return check


def gzip_level(value: str) -> str | None:
    return None if int(value) in (-1, *range(1, 10)) else "it must be between 1 and 9, or -1"


def throttled_replicas(value: str) -> str | None:
    if value in ("", "*") or all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in value.split(",")):
        return None
    return "it must be * or a list of partition:broker pairs"
