"""Rules of alerts: what they mean, and what is no rule."""

from __future__ import annotations

import contextlib
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.rule import SHARE, Condition, Rule, RuleUnreadable, Subject, parse_rule

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@pytest.mark.parametrize(
    ("text", "conditions", "for_s", "subject"),
    [
        ("lag > 10_000", (Condition("lag", ">", 10_000),), 0, Subject()),
        ("lag>5", (Condition("lag", ">", 5),), 0, Subject()),
        ("time_to_loss < 10m", (Condition("time_to_loss", "<", 600),), 0, Subject()),
        ("time to loss <= 1.5h", (Condition("time_to_loss", "<=", 5_400),), 0, Subject()),
        ("time_to_loss < 25%", (Condition("time_to_loss", "<", 0.25, is_share=True),), 0, Subject()),
        ("dead > 0 on flows", (Condition("dead", ">", 0),), 0, Subject("flow")),
        ("gone > 0 on view sales", (Condition("gone", ">", 0),), 0, Subject("view", "sales")),
        ("bytes >= 64MiB on group my own", (Condition("bytes", ">=", 2**26),), 0, Subject("group", "my own")),
        (
            " age > 500ms  and lag > 1 for 30s on flow on ",
            (Condition("age", ">", 0.5), Condition("lag", ">", 1)),
            30,
            Subject("flow", "on"),
        ),
    ],
)
def test_a_rule_is_read(text: str, conditions: tuple[Condition, ...], for_s: float, subject: Subject) -> None:
    assert parse_rule(text) == Rule(" ".join(text.split()), conditions, for_s, subject)


@pytest.mark.parametrize(
    ("text", "wrong", "hint"),
    [
        ("", "it says nothing", "write it as"),
        ("   on flows", "it says nothing", "write it as"),
        ("lagg > 1", "'lagg' is not measured", "did you mean lag?"),
        ("__import__('os') > 1", "is not measured", "it can be lag, bytes"),
        ("lag", "nothing is compared with lag", "compare with <"),
        ("lag = 5", "'=' does not compare", "compare with <"),
        ("lag >", "nothing stands behind lag >", "write it as"),
        ("lag > many", "'many' is not a number of records", "lag > 10_000"),
        ("lag > -1", "'-1' is not a number of records", "lag > 10_000"),
        ("lag > 10s", "'10s' is not a number of records", "lag > 10_000"),
        ("age > 10", "'10' is not a duration behind age", "write it as"),
        ("age > 50%", "'50%' is not a duration behind age", "write it as"),
        ("time_to_loss < 1 h", "'1' is not a duration", "write it as"),
        ("bytes > 5kb", "'5kb' is not a size", "write it as"),
        ("lag > 1 and", "a condition is missing", "it can be"),
        ("lag > 1 or dead > 0", "'or' is not expected there", "write it as"),
        ("lag > 1 for", "there is not a duration behind 'for'", "write it as"),
        ("lag > 1 for ever", "'ever' is not a duration behind 'for'", "write it as"),
        ("lag > 1 for 3s dead", "'dead' is not expected there", "write it as"),
        ("lag > 1 on price", "'price' is not what a rule can be on", "flow NAME"),
        ("lag > 1 on flow", "'flow' is not what a rule can be on", "flow NAME"),
        ("lag > 1 on flows price", "'flows price' is not what a rule can be on", "flow NAME"),
    ],
)
def test_what_is_no_rule_is_quoted_with_the_way_out(text: str, wrong: str, hint: str) -> None:
    with pytest.raises(RuleUnreadable) as caught:
        parse_rule(text)
    assert wrong in caught.value.message
    assert hint in caught.value.hint


@given(st.text())
def test_any_text_is_a_rule_or_is_refused(text: str) -> None:
    with contextlib.suppress(RuleUnreadable):
        assert parse_rule(text).conditions


numbers = st.integers(0, 50)


@given(
    st.lists(
        st.tuples(st.sampled_from(["lag", "dead", "gone"]), st.sampled_from([*OPERATORS]), numbers),
        min_size=1,
    ),
    st.fixed_dictionaries({name: st.none() | numbers for name in ("lag", "dead", "gone")}),
)
def test_a_rule_holds_where_all_of_its_conditions_do(
    conditions: list[tuple[str, str, int]], measures: dict[str, int | None]
) -> None:
    rule = parse_rule(" and ".join(f"{name} {sign} {value}" for name, sign, value in conditions))
    found = []
    for name, sign, value in conditions:
        measured = measures[name]
        found.append(None if measured is None else OPERATORS[sign](measured, value))
    expected = False if False in found else None if None in found else True
    assert (
        rule.holds({name: None if one is None else float(one) for name, one in measures.items()}) is expected
    )


def test_a_percentage_is_of_the_time_that_a_record_is_kept() -> None:
    rule = parse_rule("time_to_loss < 50%")
    assert rule.holds({"time_to_loss": 1.0, SHARE: 0.6}) is False
    assert rule.holds({"time_to_loss": 1e9, SHARE: 0.4}) is True
    assert rule.holds({"time_to_loss": 1.0}) is None


def test_a_subject_takes_what_it_names() -> None:
    assert Subject().takes("group", "g")
    assert Subject("flow").takes("flow", "price")
    assert not Subject("flow").takes("view", "price")
    assert Subject("view", "a").takes("view", "a")
    assert not Subject("view", "a").takes("view", "b")
