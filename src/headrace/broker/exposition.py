"""Prometheus' text format, version 0.0.4: one line of type and help for each name, then its samples.

Label values are the only text of strangers in it (topics, groups): backslash, quote and newline are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Takes samples until its page has ``bytes_max`` bytes; those that come after them are counted, not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._page = bytearray()
        self.left_out = 0

    def family(self, name: str, kind: str, text: str) -> None:
        """What follows are samples of ``name``."""
        self._page += f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()

    def sample(self, name: str, labels: Mapping[str, object], value: float) -> None:
        if len(self._page) >= self._bytes_max:
            self.left_out += 1
            return
        shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        name = f"{name}{{{shown}}}" if shown else name
        self._page += f"{name} {_number(value)}\n".encode()

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        """A family of one sample without labels, also on a page that is full."""
        self.family(name, kind, text)
        self._page += f"{name} {_number(value)}\n".encode()

    def text(self) -> bytes:
        return bytes(self._page)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
