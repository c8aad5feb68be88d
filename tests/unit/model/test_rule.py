"""Alert rules: the meaning of valid ones, and the errors of invalid ones."""

from __future__ import annotations

import contextlib
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.rule import SHARE, Condition, InvalidRule, Rule, Subject, parse_rule

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
def test_a_rule_is_parsed(
    text: str, conditions: tuple[Condition, ...], for_s: float, subject: Subject
) -> None:
    rule = parse_rule(text)
    assert rule == Rule(" ".join(text.split()), rule.when, conditions, for_s, subject)


@pytest.mark.parametrize(
    ("text", "wrong", "hint"),
    [
        ("", "the condition is missing", "write it as"),
        ("   on flows", "the condition is missing", "write it as"),
        ("lagg > 1", "'lagg' is not a measure", "did you mean lag?"),
        ("offset > 1", "'offset' is not a measure", "use lag, bytes"),
        ("__import__('os') > 1", "the filter has a syntax error at character 12", "write it as"),
        ("lag", "expected =", "write it as"),
        ("lag = 5", "lag cannot be tested with '='", "use <"),
        ("not lag = null", "lag cannot be tested with 'null'", "use <"),
        ("lag >", "expected a value, found the end", "write it as"),
        ("lag > many", "expected a value, found 'many'", "write it as"),
        ("lag > -1", "'-1' is not a number of records", "lag > 10_000"),
        ("lag > 10s", "'10s' is not a number of records", "lag > 10_000"),
        ("age > 10", "'10' is not a duration for age", "write it as"),
        ("age > 50%", "'50%' is not a duration for age", "write it as"),
        ("time_to_loss < 1 h", "expected and, or, or the end, found 'h'", "write it as"),
        ("bytes > 5kb", "'5kb' is not a size", "write it as"),
        ("lag > 1 and", "expected a name, found the end", "write it as"),
        ("lag > 1 or dead", "expected =", "write it as"),
        ("lag > 1 for", "a duration after 'for', like 500ms, 30s, 10m, 1h or 7d, is missing", "write it as"),
        ("lag > 1 for ever", "'ever' is not a duration after 'for'", "write it as"),
        ("lag > 1 for 3s dead", "'dead' is unexpected after the duration", "write it as"),
        ("lag > 1 on price", "'price' is not a subject", "flow NAME"),
        ("lag > 1 on flow", "'flow' is not a subject", "flow NAME"),
        ("lag > 1 on flows price", "'flows price' is not a subject", "flow NAME"),
    ],
)
def test_an_invalid_rule_is_quoted_with_a_hint(text: str, wrong: str, hint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        parse_rule(text)
    assert wrong in caught.value.message
    assert hint in caught.value.hint


@given(st.text())
def test_any_text_is_a_rule_or_is_refused(text: str) -> None:
    with contextlib.suppress(InvalidRule):
        assert parse_rule(text).conditions


numbers = st.integers(0, 50)


@given(
    st.lists(
        st.tuples(st.sampled_from(["lag", "dead", "gone"]), st.sampled_from([*OPERATORS]), numbers),
        min_size=1,
    ),
    st.fixed_dictionaries({name: st.none() | numbers for name in ("lag", "dead", "gone")}),
)
def test_a_rule_holds_if_all_of_its_conditions_hold(
    conditions: list[tuple[str, str, int]], measures: dict[str, int | None]
) -> None:
    rule = parse_rule(" and ".join(f"{name} {sign} {value}" for name, sign, value in conditions))
    found = []
    for name, sign, value in conditions:
        measured = measures[name]
        found.append(None if measured is None else OPERATORS[sign](measured, value))
    expected = False if False in found else None if None in found else True
    assert (
        rule.holds({name: None if measure is None else float(measure) for name, measure in measures.items()})
        is expected
    )


def test_a_percentage_is_a_share_of_the_retention_time() -> None:
    rule = parse_rule("time_to_loss < 50%")
    assert rule.holds({"time_to_loss": 1.0, SHARE: 0.6}) is False
    assert rule.holds({"time_to_loss": 1e9, SHARE: 0.4}) is True
    assert rule.holds({"time_to_loss": 1.0}) is None


def test_a_subject_matches_the_parts_that_it_names() -> None:
    assert Subject().matches("group", "g")
    assert Subject("flow").matches("flow", "price")
    assert not Subject("flow").matches("view", "price")
    assert Subject("view", "a").matches("view", "a")
    assert not Subject("view", "a").matches("view", "b")


@pytest.mark.parametrize(
    ("text", "lag", "dead", "holds"),
    [
        ("lag > 5 or dead > 0", 9, None, True),
        ("lag > 5 or dead > 0", 1, None, None),
        ("lag > 5 or dead > 0", 1, 0, False),
        ("not lag > 5", 1, 0, True),
        ("not lag > 5", None, 0, None),
        ("not (lag > 5 or dead > 0) and dead < 9", 1, 0, True),
    ],
)
def test_a_rule_combines_conditions_with_or_and_not(
    text: str, lag: float | None, dead: float | None, holds: bool | None
) -> None:
    assert parse_rule(text).holds({"lag": lag, "dead": dead}) is holds
