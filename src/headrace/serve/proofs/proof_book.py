"""The last result of each view's proof, in a file: a restart still shows it.

A small JSON file, written beside and moved into its place, so that a crash leaves the old one or the new one. One that
cannot be read is as good as none: the results are also in the log (``headrace verify --last``).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.ops.report import Report
from headrace.private import make_private_dir, private

__all__ = ["Proof", "ProofBook"]

_LINES_MAX = 200


class Proof(msgspec.Struct, frozen=True):
    at_ms: int
    seconds: float
    verdict: str
    """proven, different or unprovable; or failed, where it could not be verified."""
    line: str
    """All in one."""
    lines: list[str]
    records: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    code: str = ""
    hint: str = ""

    @classmethod
    def of(cls, report: Report) -> Proof:
        return cls(
            *(report.began_ms, report.seconds, report.verdict, report.line(), report.lines()[:_LINES_MAX]),
            *(report.records, report.found_rows, report.missing, report.extra, report.different),
        )

    @classmethod
    def failed(cls, error: HeadraceError, at_ms: int, seconds: float) -> Proof:
        line = f"cannot be verified: {error.message}"
        return cls(at_ms, round(seconds, 3), "failed", line, [line], code=error.code, hint=error.hint)


_decoder = msgspec.json.Decoder(dict[str, Proof])


class ProofBook:
    """For one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Proof] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._known = _decoder.decode(path.read_bytes())

    def find(self, view: str) -> Proof | None:
        return self._known.get(view)

    def keep(self, view: str, proof: Proof) -> None:
        self._known = {**self._known, view: proof}
        make_private_dir(self._path.parent)
        beside = self._path.with_name(f"{self._path.name}.new")
        with open(beside, "wb", opener=private) as file:
            file.write(msgspec.json.encode(self._known))
        beside.replace(self._path)
