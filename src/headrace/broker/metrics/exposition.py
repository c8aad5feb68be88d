"""Writes Prometheus' text format, version 0.0.4: for each metric a HELP line, a TYPE line, then its samples.

Only label values (topics, groups) contain text from clients, so backslash, quote and newline are escaped in them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """A page of metrics. When it has ``bytes_max`` bytes, further samples are counted but not added."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._page = bytearray()
        self.omitted = 0

    def family(self, name: str, kind: str, text: str) -> None:
        """Write the HELP and TYPE lines of the metric ``name``."""
        self._page += f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()

    def sample(self, name: str, labels: Mapping[str, object], value: float) -> None:
        if len(self._page) >= self._bytes_max:
            self.omitted += 1
            return
        pairs = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        name = f"{name}{{{pairs}}}" if pairs else name
        self._page += f"{name} {_number(value)}\n".encode()

    def single(self, name: str, kind: str, text: str, value: float) -> None:
        """Write a metric with one sample and no labels, even if the page is full."""
        self.family(name, kind, text)
        self._page += f"{name} {_number(value)}\n".encode()

    def text(self) -> bytes:
        return bytes(self._page)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
