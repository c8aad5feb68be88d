"""The report of a verification: text for people, JSON for programs, an exit code for scripts.

The compacted topic ``headrace.verify`` has the last report of each view and flow. The key is ``<app>/<view>`` or
``<app>/flow/<flow>``. The value is the ``Report`` as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from headrace.app import App
from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.client.records import read, write
from headrace.model.declarations import Flow

__all__ = [
    "EXIT_DIFFERENT",
    "EXIT_PROVEN",
    "EXIT_UNPROVABLE",
    "TOPIC",
    "Difference",
    "Finding",
    "Report",
    "Unprovable",
    "flow_of",
    "last_reports",
    "save_report",
]


EXIT_PROVEN, EXIT_DIFFERENT, EXIT_UNPROVABLE = 0, 1, 6
_SHOWN_CHARS_MAX = 120
_REJECTED_JUMP_PERCENT = 1.0
_WARNING = "warning: "


class Difference(msgspec.Struct, frozen=True):
    kind: Literal["missing", "extra", "different"]
    key: dict[str, Any]
    expected: dict[str, Any] | None
    """The whole derived row; None if the row should not exist."""
    found: dict[str, Any] | None
    columns: list[str] = []
    """The columns that differ."""
    topic: str = ""
    """The flow's stable topic, if the row there differs from the row of the serving generation; else empty."""

    def lines(self) -> list[str]:
        key = ", ".join(f"{name}={_short(value)}" for name, value in self.key.items())
        lines = [f"{self.kind:<9}  {key}" + (f" in {self.topic}" if self.topic else "")]
        if self.kind == "different":
            assert self.expected is not None
            assert self.found is not None
            for name in self.columns:
                lines.append(
                    f"           {name}: {_short(self.expected[name])} expected, {_short(self.found[name])} found"
                )
        else:
            lines.append(f"           {_short(self.expected or self.found)}")
        return lines


class Finding(msgspec.Struct, frozen=True):
    """A problem that is not a wrong row."""

    kind: Literal["position", "function", "shape", "books", "topic"]
    message: str
    hint: str = ""


class Unprovable(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    before: int
    """Rows from input before this offset cannot be derived again."""
    why: str

    def __str__(self) -> str:
        return f"unprovable before offset {self.before} of {self.topic}/{self.partition}: {self.why}"


class Report(msgspec.Struct, kw_only=True):
    app: str
    what: Literal["view", "flow"]
    name: str
    topic: str
    """The topic's name in the log."""
    topic_id: str = ""
    view_digest: str = ""
    """A digest of the declarations that the view is built from (``headrace.ops.verify.outdated``)."""
    flow: str = ""
    """The flow that writes the topic; empty if no flow writes it."""
    generation: int = 0
    batch: int = -1
    """The last batch that was verified; -1 for a topic that no flow writes."""
    offsets: dict[str, int] = {}
    behind: int = 0
    """How many batches the view is behind the log; if no flow writes the topic, how many records it is behind."""
    expected_rows: int = 0
    found_rows: int = 0
    expected_sha256: str = ""
    found_sha256: str = ""
    """The hash of the provable rows, in the order of their key."""
    missing: int = 0
    extra: int = 0
    different: int = 0
    differences: list[Difference] = []
    """The first differences in the order of their key."""
    findings: list[Finding] = []
    unprovable: list[Unprovable] = []
    unprovable_rows: int = 0
    notes: list[str] = []
    records: int = 0
    """Records that were read from the inputs, including late events and dead letters."""
    late: int = 0
    dead: int = 0
    began_ms: int = 0
    seconds: float = 0.0
    verdict: Literal["proven", "different", "unprovable"] = "proven"

    def judge(self) -> None:
        """Set the verdict. A difference among provable rows takes precedence over unprovable rows."""
        if self.findings or self.missing or self.extra or self.different:
            self.verdict = "different"
        elif self.unprovable or self.unprovable_rows:
            self.verdict = "unprovable"
        else:
            self.verdict = "proven"

    @property
    def rejected_percent(self) -> float:
        """Late and dead records, in percent of the records that were read."""
        return 100 * (self.late + self.dead) / self.records if self.records else 0.0

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
        """A summary in one line."""
        extent = (
            f"through batch {self.batch} of generation {self.generation}"
            if self.generation
            else f"up to end {self._offsets()}"
        )
        verdict = {
            "proven": f"proven, {self.found_rows:,} rows, sha256 {self.found_sha256[:12]}",
            "different": f"NOT AS DERIVED: {self._differences()}",
            "unprovable": f"unprovable in part: {self.unprovable_rows:,} of {self.found_rows:,} rows",
        }[self.verdict]
        rejected = f", {self.rejected_percent:.1f} % of them late or dead" if self.late or self.dead else ""
        read = f"{self.records:,} records in {self.seconds:.1f} s{rejected}"
        return f"{self.what} {self.name}: {verdict}; {extent}, {read}"

    def lines(self) -> list[str]:
        started = datetime.fromtimestamp(self.began_ms / 1_000, UTC).isoformat(timespec="seconds")
        lines = [self.line()]
        lines += [
            f"  {finding.kind}: {finding.message}" + (f" ({finding.hint})" if finding.hint else "")
            for finding in self.findings
        ]
        lines += [f"  {unprovable}" for unprovable in self.unprovable]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {line}" for difference in self.differences for line in difference.lines()]
        omitted = self.missing + self.extra + self.different - len(self.differences)
        if omitted > 0:
            lines.append(f"  and {omitted:,} more")
        lines += [f"  next step: {step}" for step in self.next_steps()]
        rejected = f", including {self.late:,} late and {self.dead:,} dead" if self.late or self.dead else ""
        lines.append(
            f"  {started}: {self.records:,} records read{rejected}; {self.expected_rows:,} rows derived,"
            f" {self.found_rows:,} found"
        )
        lines.append(f"  sha256 derived {self.expected_sha256 or '-'}")
        lines.append(f"  sha256 found   {self.found_sha256 or '-'}")
        return lines

    def short_lines(self) -> list[str]:
        """The whole report only if it is not proven; else one line, and the warnings."""
        if not self.proven:
            return self.lines()
        return [self.line(), *(f"  {note}" for note in self.notes if note.startswith(_WARNING))]

    def next_steps(self) -> list[str]:
        """Return what to do about differences, with commands that can be pasted."""
        if self.verdict != "different":
            return []
        rebuild_view = f"headrace view rebuild {app_argument()} {self.name}"
        if self.what == "view" and not self.flow:
            return [f"fill the view again from its topic: {rebuild_view}"]
        rebuild_flow = f"headrace flow rebuild {app_argument()} {self.flow or self.name}"
        if self.what == "flow" or any(finding.kind in ("function", "topic") for finding in self.findings):
            return [f"derive the rows again: {rebuild_flow}"]
        return [
            f"find out whether the view's topic is right: headrace verify {app_argument()} --flow {self.flow}",
            f"if the topic is proven, fill the view again from it: {rebuild_view}",
            f"if the topic is not as derived, derive it again: {rebuild_flow}",
        ]

    def _differences(self) -> str:
        kinds = (("missing", self.missing), ("extra", self.extra), ("different", self.different))
        texts = [f"{count:,} {name}" for name, count in kinds if count]
        texts += [f"wrong {finding.kind}" for finding in self.findings]
        return ", ".join(texts)

    def _offsets(self) -> str:
        return ", ".join(
            f"offset {offset} of {self.topic}/{number}" for number, offset in sorted(self.offsets.items())
        )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A value from the log must not control the terminal.
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


TOPIC = "headrace.verify"
_decoder = msgspec.json.Decoder(Report)


def save_report(cluster: Cluster, report: Report) -> None:
    """Write the report to the log. Return when the log has acknowledged it.

    Add a note if the share of late and dead records is much higher than in the previous report.
    """
    cluster.ensure_topic(TOPIC, 1, {"cleanup.policy": "compact"})
    for previous in last_reports(cluster, report.app):
        is_same = (previous.what, previous.name) == (report.what, report.name)
        if is_same and report.rejected_percent > previous.rejected_percent + _REJECTED_JUMP_PERCENT:
            report.notes.append(
                f"{_WARNING}{report.rejected_percent:.1f} % of the records are late or dead; in the last proof, of"
                f" generation {previous.generation}, it was {previous.rejected_percent:.1f} %"
            )
    write(cluster, TOPIC, _key(report), msgspec.json.encode(report), f"saving the report to {TOPIC!r}")


def last_reports(cluster: Cluster, app: str) -> Iterator[Report]:
    """Return the newest report of each view and flow of the app, sorted by name."""
    if cluster.topic(TOPIC) is None:
        return
    starts, ends = cluster.starts(TOPIC), cluster.ends(TOPIC)
    reports: dict[tuple[str, str], Report] = {}
    for message in read(cluster, TOPIC, {number: (starts[number], end) for number, end in ends.items()}):
        try:
            report = _decoder.decode(message.value() or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # Another release or another program wrote this record.
        if report.app == app:
            reports[report.what, report.name] = report
    yield from (reports[name] for name in sorted(reports))


def flow_of(app: App, report: Report) -> Flow | None:
    """Return the flow that writes the rows of the report; None if no flow writes them."""
    if report.what == "flow":
        return next((flow for flow in app.flows if flow.name == report.name), None)
    view = next((view for view in app.views if view.name == report.name), None)
    return None if view is None else app.writer_of(view.topic)


def _key(report: Report) -> str:
    return f"{report.app}/{report.name}" if report.what == "view" else f"{report.app}/flow/{report.name}"
