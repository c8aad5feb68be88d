"""Prometheus' text format, version 0.0.4: one line of type and help for each name, then its samples.

Label values are the only text of strangers in it (topics, groups): backslash, quote and newline are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Holds no more than ``samples_max`` samples; what comes after them is counted, not kept."""

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._lines: list[str] = []
        self._samples = 0
        self.left_out = 0

    def family(self, name: str, kind: str, text: str) -> None:
        """What follows are samples of ``name``."""
        self._lines.append(f"# HELP {name} {text}")
        self._lines.append(f"# TYPE {name} {kind}")

    def sample(self, name: str, labels: Mapping[str, object], value: float) -> None:
        if self._samples >= self._samples_max:
            self.left_out += 1
            return
        self._samples += 1
        shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        self._lines.append(f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}")

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        """A family of one sample without labels."""
        self.family(name, kind, text)
        self.sample(name, {}, value)

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
