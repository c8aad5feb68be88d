"""Two sets of rows compared on disk, against the same comparison with dictionaries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.ops.verify.comparison import Comparison, Scratch
from headrace.ops.verify.report import Report

COLUMNS = [("shop", "TEXT"), ("day", "INTEGER"), ("amount", "REAL"), ("note", "TEXT")]
KEY = ("day", "shop")

keys = st.tuples(st.sampled_from(["", "a", "b\0", "ü"]), st.integers(-3, 3))
values = st.tuples(
    st.one_of(st.none(), st.just("NaN"), st.floats(allow_nan=False)),
    st.one_of(st.none(), st.text("a'\0ü😀", max_size=3)),
)
sides = st.dictionaries(keys, values, max_size=12)


@contextmanager
def scratch() -> Iterator[Scratch]:
    with tempfile.TemporaryDirectory() as name:
        created = Scratch(Scratch.open(Path(name)), COLUMNS, KEY)
        try:
            yield created
        finally:
            created.close()


def rows(side: dict[tuple[str, int], tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    return ((*key, *value) for key, value in side.items())


def report_of(scratch_file: Scratch, **options: object) -> Report:
    report = Report(app="a", what="view", name="v", topic="t")
    created: Comparison = scratch_file.compare(sample=100, **options)  # type: ignore[arg-type]
    created.add_to(report)
    report.judge()
    return report


@given(expected=sides, found=sides, data=st.data())
def test_a_comparison_reports_exactly_the_differences_and_their_kinds(
    expected: dict, found: dict, data: st.DataObject
) -> None:
    for key in expected:
        if data.draw(st.booleans()):
            found[key] = expected[key]
    with scratch() as scratch_file:
        scratch_file.put("expected", rows(expected))
        scratch_file.put("found", rows(found))
        report = report_of(scratch_file)
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    different = {key for key in expected.keys() & found.keys() if expected[key] != found[key]}
    assert (report.missing, report.extra, report.different) == (len(missing), len(extra), len(different))
    by_kind: dict[str, set[tuple[object, ...]]] = {"missing": set(), "extra": set(), "different": set()}
    for difference in report.differences:
        assert list(difference.key) == list(KEY)
        by_kind[difference.kind].add((difference.key["shop"], difference.key["day"]))
    assert by_kind == {"missing": missing, "extra": extra, "different": different}
    assert report.proven == (expected == found)
    assert (report.expected_sha256 == report.found_sha256) == (expected == found)
    in_order = [tuple(difference.key.values()) for difference in report.differences]
    assert in_order == sorted(in_order)


def test_a_number_and_its_text_are_not_equal() -> None:
    with scratch() as scratch_file:
        scratch_file.put("expected", [("a", 1, 2.0, "3")])
        scratch_file.put("found", [("a", 1, "two", b"3")])
        report = report_of(scratch_file)
    assert report.differences[0].columns == ["amount", "note"]


def test_unprovable_rows_are_counted_and_the_rest_is_compared() -> None:
    with scratch() as scratch_file:
        scratch_file.put("expected", [("a", 1, 1.0, None), ("b", 1, 1.0, None)])
        scratch_file.expect_by_topic([("c", 1, 1.0, "topic"), ("d", 1, 1.0, "topic")])
        scratch_file.expect_unknown([(1, "e"), (1, "f")])
        scratch_file.expect_absent([(1, "g")])
        scratch_file.put(
            "found",
            [
                ("a", 1, 1.0, None),
                ("b", 1, 2.0, None),
                ("c", 1, 1.0, "topic"),
                ("d", 1, 1.0, "other"),
                ("e", 1, 1.0, None),
                ("g", 1, 1.0, None),
                ("h", 1, 1.0, None),
            ],
        )
        excluded = scratch_file.exclude_rows_not_derived()
        report = report_of(scratch_file)
    # e is unknown, h is not derived, and g should not exist.
    assert excluded == 2
    assert {(difference.kind, difference.key["shop"]) for difference in report.differences} == {
        ("different", "b"),
        ("different", "d"),
        ("extra", "g"),
    }
    assert (
        report.unprovable_rows == 3
    )  # c equals a row of the topic that was not derived; e and f are unknown


def test_rows_up_to_a_time_are_excluded_on_both_sides() -> None:
    with scratch() as scratch_file:
        scratch_file.put("expected", [("a", 1, 1.0, "12:01"), ("b", 1, 1.0, "12:05")])
        scratch_file.put("found", [("a", 1, 7.0, "12:01"), ("b", 1, 1.0, "12:05"), ("c", 1, 7.0, "12:00")])
        assert scratch_file.exclude_up_to("note", "12:01") == 2
        assert report_of(scratch_file).proven


def test_equal_rows_in_different_spellings_have_the_same_hash() -> None:
    with scratch() as scratch_file:
        scratch_file.put("expected", [("a", 1, 1.0, "x"), ("b", 1, 1.0, "y")])
        scratch_file.put("found", [("a", 1, 1.0, "X"), ("b", 1, 1.0, "y")])
        report = report_of(
            scratch_file, differing=lambda item, other: [] if str(item).lower() == str(other).lower() else [3]
        )
    assert report.proven
    assert report.expected_sha256 == report.found_sha256


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 2), keys, st.one_of(st.none(), values), st.integers(0, 4)), max_size=30
    ),
    ordered=st.booleans(),
)
def test_a_fold_expects_the_last_value_of_each_key(changes: list, ordered: bool) -> None:
    """A batch has rows in several partitions. If a key has rows in two of them, the higher partition counts."""
    changes.sort(key=lambda change: change[3])
    last: dict[tuple[str, int], tuple[tuple[int, int, int], tuple[object, ...] | None]] = {}
    parts: dict[tuple[str, int], set[int]] = {}
    with scratch() as scratch_file:
        scratch_file.begin_fold()
        changelog = []
        for offset, (part, key, value, batch) in enumerate(changes):
            row = (1, *scratch_file.row_of_key((key[1], key[0]))) if value is None else (0, *key, *value)
            changelog.append((part, batch, offset, *row))
            order = batch, part, offset
            if key not in last or last[key][0] <= order:
                last[key] = order, value
            parts.setdefault(key, set()).add(part)
        scratch_file.fold(changelog)
        scratch_file.end_fold(ordered=ordered)
        assert all(scratch_file.has_key((day, shop)) for shop, day in last)
        assert not scratch_file.has_key((77, "a"))
        unknown_keys = set() if ordered else {key for key, key_parts in parts.items() if len(key_parts) > 1}
        expected_rows = {
            key: value for key, (_, value) in last.items() if value is not None and key not in unknown_keys
        }
        scratch_file.put("found", rows(expected_rows))
        report = report_of(scratch_file)
    assert (report.missing, report.extra, report.different) == (0, 0, 0), report.differences
    assert report.unprovable_rows == len(unknown_keys)
