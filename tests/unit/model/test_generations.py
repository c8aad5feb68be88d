"""The roles of the generations of a flow."""

from __future__ import annotations

from headrace.model.generations import Entry, FlowGenerations


def _entry(number: int) -> Entry:
    return Entry(
        number, f"progress.{number}", f"rides.g{number}" if number > 1 else "rides", "f", "a test", 0
    )


def _with(*numbers: int) -> FlowGenerations:
    generations = FlowGenerations("derive", "bikes", "rides", 1, 1, (_entry(1),))
    for number in numbers:
        generations = generations.with_entry(_entry(number))
    return generations


def _switched(generations: FlowGenerations, number: int) -> FlowGenerations:
    return generations.with_switch(number, "host:1:run", 1).switched(0, 5)


def _roles(generations: FlowGenerations) -> dict[int, str]:
    return {entry.number: generations.role(entry.number) for entry in generations.entries}


def test_a_generation_below_one_that_served_is_superseded() -> None:
    generations = _with(2, 3)
    assert _roles(generations) == {1: "serving", 2: "building", 3: "building"}
    assert generations.building == _entry(3)
    generations = _switched(generations, 3)
    assert _roles(generations) == {1: "kept", 2: "superseded", 3: "serving"}
    assert generations.building is None
    assert generations.superseded == (_entry(2),)
    # The way back makes nothing of an earlier function new.
    generations = _switched(generations, 1)
    assert _roles(generations) == {1: "serving", 2: "superseded", 3: "kept"}
    assert generations.building is None


def test_a_generation_has_served_also_when_it_serves_again() -> None:
    generations = _switched(_with(2), 2)
    assert (generations.has_served(1), generations.has_served(2)) == (True, False)
    generations = _switched(generations, 1)
    assert (generations.has_served(1), generations.has_served(2)) == (True, True)


def test_the_stable_topic_has_the_rows_of_the_last_published_generation() -> None:
    generations = _switched(_with(2), 2)
    assert generations.published_number == 2
    back = generations.with_switch(1, "host:1:run", 1).switched(0, 6, is_published=False)
    assert (back.serving, back.published_number) == (1, 2)
