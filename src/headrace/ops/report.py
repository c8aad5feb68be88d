"""What a verification found: for a person a few lines, for a program JSON, for a script an exit code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

__all__ = [
    "EXIT_DIFFERENT",
    "EXIT_PROVEN",
    "EXIT_UNPROVABLE",
    "Difference",
    "Finding",
    "Report",
    "Unprovable",
]

EXIT_PROVEN, EXIT_DIFFERENT, EXIT_UNPROVABLE = 0, 1, 6
_SHOWN_CHARS_MAX = 120


class Difference(msgspec.Struct, frozen=True):
    kind: Literal["missing", "extra", "different"]
    key: dict[str, Any]
    expected: dict[str, Any] | None
    """The whole row, as it was derived; None for one that should not be there."""
    found: dict[str, Any] | None
    columns: list[str] = []
    """Those that differ."""

    def lines(self) -> list[str]:
        key = ", ".join(f"{name}={_short(value)}" for name, value in self.key.items())
        told = [f"{self.kind:<9}  {key}"]
        if self.kind == "different":
            assert self.expected is not None
            assert self.found is not None
            for name in self.columns:
                told.append(
                    f"           {name}: {_short(self.expected[name])} expected, {_short(self.found[name])} found"
                )
        else:
            told.append(f"           {_short(self.expected or self.found)}")
        return told


class Finding(msgspec.Struct, frozen=True):
    """Something wrong that is no row."""

    kind: Literal["position", "function", "shape", "books", "topic"]
    message: str
    hint: str = ""


class Unprovable(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    before: int
    """What came from offsets before this one cannot be derived again."""
    why: str

    def __str__(self) -> str:
        return f"unprovable before offset {self.before} of {self.topic}/{self.partition}: {self.why}"


class Report(msgspec.Struct, kw_only=True):
    app: str
    what: Literal["view", "flow"]
    name: str
    topic: str
    """As the log names it."""
    generation: int = 0
    batch: int = -1
    """The last batch that is in it; -1 for a topic that no flow writes."""
    offsets: dict[str, int] = {}
    behind: int = 0
    """Batches, or records where no flow writes them, that are in the log and not in it yet."""
    expected_rows: int = 0
    found_rows: int = 0
    expected_sha256: str = ""
    found_sha256: str = ""
    """Over the rows that can be proven, in the order of their key."""
    missing: int = 0
    extra: int = 0
    different: int = 0
    differences: list[Difference] = []
    """The first ones, in the order of their key."""
    findings: list[Finding] = []
    unprovable: list[Unprovable] = []
    unprovable_rows: int = 0
    notes: list[str] = []
    records: int = 0
    """That were read of the inputs, with those that were left out."""
    late: int = 0
    dead: int = 0
    began_ms: int = 0
    seconds: float = 0.0
    verdict: Literal["proven", "different", "unprovable"] = "proven"

    def judge(self) -> None:
        """A difference in what can be proven is one, whatever cannot."""
        if self.findings or self.missing or self.extra or self.different:
            self.verdict = "different"
        elif self.unprovable or self.unprovable_rows:
            self.verdict = "unprovable"
        else:
            self.verdict = "proven"

    @property
    def proven(self) -> bool:
        return self.verdict == "proven"

    @property
    def exit_code(self) -> int:
        return {"proven": EXIT_PROVEN, "different": EXIT_DIFFERENT, "unprovable": EXIT_UNPROVABLE}[
            self.verdict
        ]

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """All in one."""
        through = (
            f"batch {self.batch} of generation {self.generation}" if self.generation else self._offsets()
        )
        told = {
            "proven": f"proven, {self.found_rows:,} rows, sha256 {self.found_sha256[:12]}",
            "different": f"NOT AS DERIVED: {self._differences()}",
            "unprovable": f"unprovable in part: {self.unprovable_rows:,} of {self.found_rows:,} rows",
        }[self.verdict]
        return (
            f"{self.what} {self.name}: {told}; through {through},"
            f" {self.records:,} records in {self.seconds:.1f} s"
        )

    def lines(self) -> list[str]:
        when = datetime.fromtimestamp(self.began_ms / 1_000, UTC).isoformat(timespec="seconds")
        told = [self.line()]
        told += [
            f"  {one.kind}: {one.message}" + (f" ({one.hint})" if one.hint else "") for one in self.findings
        ]
        told += [f"  {one}" for one in self.unprovable]
        told += [f"  {one}" for one in self.notes]
        told += [f"  {line}" for one in self.differences for line in one.lines()]
        more = self.missing + self.extra + self.different - len(self.differences)
        if more > 0:
            told.append(f"  and {more:,} more")
        left_out = f", of these {self.late:,} late and {self.dead:,} dead" if self.late or self.dead else ""
        told.append(
            f"  {when}: {self.records:,} records read{left_out}; {self.expected_rows:,} rows derived,"
            f" {self.found_rows:,} found"
        )
        told.append(f"  sha256 derived {self.expected_sha256 or '-'}")
        told.append(f"  sha256 found   {self.found_sha256 or '-'}")
        return told

    def _differences(self) -> str:
        kinds = (("missing", self.missing), ("extra", self.extra), ("different", self.different))
        told = [f"{count:,} {name}" for name, count in kinds if count]
        told += [f"wrong {one.kind}" for one in self.findings]
        return ", ".join(told)

    def _offsets(self) -> str:
        return ", ".join(f"offset {at} of {self.topic}/{one}" for one, at in sorted(self.offsets.items()))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A value from the log must not be able to steer the terminal.
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
