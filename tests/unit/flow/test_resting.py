"""Which generation rests while a process with a changed function runs."""

from __future__ import annotations

from headrace.flow.generation_choice import resting_entry
from headrace.model.generations import Entry, FlowGenerations


def _entry(number: int, fingerprint: str) -> Entry:
    return Entry(number, f"progress.{number}", f"rides.g{number}", fingerprint, "a test", 0)


def test_the_serving_generation_rests_while_a_process_derives_one_of_a_changed_function() -> None:
    serving = _entry(1, "old")
    alone = FlowGenerations("derive", "bikes", "rides", 1, 1, (serving,))
    assert resting_entry(alone, "old") is None
    changed = alone.with_entry(_entry(2, "new"))
    assert resting_entry(changed, "new") is serving
    # The process that has the old function derives it.
    assert resting_entry(changed, "old") is None
    # After a request for a rebuild, one process derives both.
    assert resting_entry(alone.with_entry(_entry(2, "old")), "old") is None
