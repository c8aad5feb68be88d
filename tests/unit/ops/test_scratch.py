"""Two sets of rows, compared on disk: against the same done with dictionaries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.ops.report import Report
from headrace.ops.scratch import Compared, Scratch

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
        made = Scratch(Scratch.open(Path(name)), COLUMNS, KEY)
        try:
            yield made
        finally:
            made.close()


def rows(side: dict[tuple[str, int], tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    return ((*key, *value) for key, value in side.items())


def told(one: Scratch, **more: object) -> Report:
    report = Report(app="a", what="view", name="v", topic="t")
    made: Compared = one.compare(sample=100, **more)  # type: ignore[arg-type]
    made.tell(report)
    report.judge()
    return report


@given(expected=sides, found=sides, share=st.data())
def test_every_difference_is_found_with_its_kind_and_nothing_else(
    expected: dict, found: dict, share: st.DataObject
) -> None:
    for key in expected:
        if share.draw(st.booleans()):
            found[key] = expected[key]
    with scratch() as one:
        one.put("expected", rows(expected))
        one.put("found", rows(found))
        report = told(one)
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    different = {key for key in expected.keys() & found.keys() if expected[key] != found[key]}
    assert (report.missing, report.extra, report.different) == (len(missing), len(extra), len(different))
    by_kind: dict[str, set[tuple[object, ...]]] = {"missing": set(), "extra": set(), "different": set()}
    for one_of_them in report.differences:
        assert list(one_of_them.key) == list(KEY)
        by_kind[one_of_them.kind].add((one_of_them.key["shop"], one_of_them.key["day"]))
    assert by_kind == {"missing": missing, "extra": extra, "different": different}
    assert report.proven == (expected == found)
    assert (report.expected_sha256 == report.found_sha256) == (expected == found)
    in_order = [tuple(one.key.values()) for one in report.differences]
    assert in_order == sorted(in_order)


def test_a_number_and_the_text_of_it_are_not_the_same() -> None:
    with scratch() as one:
        one.put("expected", [("a", 1, 2.0, "3")])
        one.put("found", [("a", 1, "two", b"3")])
        report = told(one)
    assert report.differences[0].columns == ["amount", "note"]


def test_what_cannot_be_proven_is_counted_and_the_rest_compared() -> None:
    with scratch() as one:
        one.put("expected", [("a", 1, 1.0, None), ("b", 1, 1.0, None)])
        one.expect_by_topic([("c", 1, 1.0, "topic"), ("d", 1, 1.0, "topic")])
        one.expect_unknown([(1, "e"), (1, "f")])
        one.expect_absent([(1, "g")])
        one.put(
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
        aside = one.set_aside_underived()
        report = told(one)
    # e is unknown and h is not derived; g should be gone.
    assert aside == 2
    assert {(one.kind, one.key["shop"]) for one in report.differences} == {
        ("different", "b"),
        ("different", "d"),
        ("extra", "g"),
    }
    assert report.unprovable_rows == 3  # c is alike, but the topic alone says so; e and f are unknown


def test_rows_up_to_a_time_are_set_aside_on_both_sides() -> None:
    with scratch() as one:
        one.put("expected", [("a", 1, 1.0, "12:01"), ("b", 1, 1.0, "12:05")])
        one.put("found", [("a", 1, 7.0, "12:01"), ("b", 1, 1.0, "12:05"), ("c", 1, 7.0, "12:00")])
        assert one.set_aside_up_to("note", "12:01") == 2
        assert told(one).proven


def test_rows_that_say_the_same_in_other_words_have_the_same_hash() -> None:
    with scratch() as one:
        one.put("expected", [("a", 1, 1.0, "x"), ("b", 1, 1.0, "y")])
        one.put("found", [("a", 1, 1.0, "X"), ("b", 1, 1.0, "y")])
        report = told(one, differing=lambda one, other: [] if str(one).lower() == str(other).lower() else [3])
    assert report.proven
    assert report.expected_sha256 == report.found_sha256


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 2), keys, st.one_of(st.none(), values), st.integers(0, 4)), max_size=30
    ),
    ordered=st.booleans(),
)
def test_of_a_changelog_the_last_change_of_each_key_is_expected(changes: list, ordered: bool) -> None:
    """A batch has rows in several partitions; of two partitions in one batch, the later one counts."""
    changes.sort(key=lambda change: change[3])
    last: dict[tuple[str, int], tuple[tuple[int, int, int], tuple[object, ...] | None]] = {}
    parts: dict[tuple[str, int], set[int]] = {}
    with scratch() as one:
        one.begin_fold()
        told_changes = []
        for place, (part, key, value, batch) in enumerate(changes):
            row = (1, *one.widened((key[1], key[0]))) if value is None else (0, *key, *value)
            told_changes.append((part, batch, place, *row))
            at = batch, part, place
            if key not in last or last[key][0] <= at:
                last[key] = at, value
            parts.setdefault(key, set()).add(part)
        one.fold(told_changes)
        one.end_fold(ordered=ordered)
        assert all(one.knows((day, shop)) for shop, day in last)
        assert not one.knows((77, "a"))
        unsure = set() if ordered else {key for key, known in parts.items() if len(known) > 1}
        right = {key: value for key, (_, value) in last.items() if value is not None and key not in unsure}
        one.put("found", rows(right))
        report = told(one)
    assert (report.missing, report.extra, report.different) == (0, 0, 0), report.differences
    assert report.unprovable_rows == len(unsure)
