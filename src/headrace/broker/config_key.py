"""One configuration key: its name, type, default, and which values it takes.

Values travel and are stored as text. ``ConfigKey.normal`` reads a text as Kafka does (outer blanks do not
count, booleans in any case, lists separated by commas) and gives back the one spelling in which it is kept,
so that equal values are equal texts.
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
"""What is wrong with a value in its normal spelling, or ``None``."""


class ConfigType(IntEnum):
    """By the numbers that DescribeConfigs sends."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker-wide key that a topic's key falls back to; ``factor`` turns its unit into the topic key's."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """What ``normal`` accepts is accepted, ``acts`` says whether it also changes what this broker does.

    ``internal`` keys are shown only where they are set; ``dynamic`` says whether a broker's key may change
    at run time.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    check: Check | None = None
    synonyms: tuple[Synonym, ...] = ()
    acts: bool = True
    internal: bool = False
    dynamic: bool = True

    @property
    def documentation(self) -> str:
        return (
            self.doc
            if self.acts
            else f"{self.doc} Accepted and kept for Kafka's sake: it changes nothing on this broker."
        )

    def normal(self, text: str) -> str:
        """``text`` in the spelling that is kept; ``ConfigError`` if it is not a value of this key."""
        if len(text) > VALUE_CHARS_MAX:
            raise ConfigError(
                f"{self.name}: a value has at most {VALUE_CHARS_MAX} characters, not {len(text)}"
            )
        value = _READ[self.type](text.strip())
        if value is None:
            raise ConfigError(f"{self.name}: {text.strip()!r} is not {_KINDS[self.type]}")
        fault = self.check(value) if self.check is not None else None
        if fault is not None:
            raise ConfigError(f"{self.name}: {value!r} does not fit: {fault}")
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


_READ: dict[ConfigType, Callable[[str], str | None]] = {
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
    ConfigType.STRING: "a text",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list",
}


def items_of(text: str) -> list[str]:
    """The parts of a list value, without blanks around them and without empty ones."""
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
        strange = set(items_of(value)) - set(allowed)
        return f"each item must be one of {', '.join(allowed)}" if strange else None

    return check


def gzip_level(value: str) -> str | None:
    return None if int(value) in (-1, *range(1, 10)) else "it must be between 1 and 9, or -1"


def throttled_replicas(value: str) -> str | None:
    if value in ("", "*") or all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in value.split(",")):
        return None
    return "it must be * or a list of partition:broker pairs"
