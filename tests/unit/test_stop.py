"""A stop by Ctrl-C waits for nothing that hangs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from headrace.app import App
from headrace.runtime.part import Part, close_together
from headrace.runtime.run import Run
from headrace.settings import Settings


def test_an_action_that_hangs_is_named_and_the_others_run() -> None:
    hangs, done = threading.Event(), threading.Event()

    def fail() -> None:
        raise OSError("closed already")

    actions = {"Spark": hangs.wait, "metrics": fail, "the broker": done.set}
    assert close_together(actions, 0.2) == ["Spark"]
    assert done.is_set()
    hangs.set()


class _HungPart:
    """A broker and a lag monitor that never stop."""

    def __init__(self) -> None:
        self.killed = False
        self.ends = threading.Event()

    def stop(self, patience_s: float) -> None:
        self.ends.wait()

    def close(self) -> None:
        self.ends.wait()

    def kill(self) -> None:
        self.killed = True


def test_a_quick_stop_ends_although_a_part_the_log_and_the_lag_monitor_hang(
    tmp_path: Path, monkeypatch: Any
) -> None:
    notes: list[str] = []
    run = Run(App("stops"), Settings(data=tmp_path), note=notes.append, feed="stops:feed")
    hanging: Any = _HungPart()
    monkeypatch.setattr(run, "_broker", hanging)
    monkeypatch.setattr(run, "_lag_monitor", hanging)
    run.start_part(Part("view stops", lambda stop: hanging.ends.wait() and None, run.stop_requested))
    run.close(quickly=True)
    assert hanging.killed
    hanging.ends.set()
    announced, part, rest = notes
    assert "after the function that writes events; Ctrl-C again stops at once" in announced
    assert part == "view stops did not stop within 1 s; the next start repeats its work"
    assert rest == "ended without waiting longer for the lag monitor and the broker; nothing is lost"
