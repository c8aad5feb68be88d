"""A follower in its own process, which can be paused and killed.

    python -m faults.views.follower_process BOOTSTRAP KIND ADDRESS FLOW [--slow MS] [--without PROTECTION]

KIND and ADDRESS are those of a store, as in ``faults.stores.registry``.

It prints ``applying 3`` before the transaction of batch 3, ``inside 3`` within it and ``applied 3`` after it. The last
line is ``refused REASON`` when it is fenced. ``--slow`` is how many milliseconds it pauses at each of the first two
steps, so that the run can kill or pause it there.
"""

from __future__ import annotations

import argparse
import copy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from faults.patch import patch
from faults.servers.line_process import LineProcess
from faults.servers.process_tree import rss_mb
from faults.stores.port import StoreFaults
from faults.stores.registry import KINDS, store_faults
from faults.views.scripted_flow import view_of
from headrace.client.cluster import Cluster
from headrace.follow import dead_letters, work
from headrace.follow.follower import Follower
from headrace.stores.errors import StaleWriter

__all__ = ["PROTECTIONS", "FollowerProcess"]

_WAIT_S_MAX = 240.0


class _StepPrinter:
    """Prints the steps of the batch that the follower applies."""

    slow_s = 0.0
    batch = -1

    def report(self, word: str) -> None:
        print(f"{word} {self.batch}", flush=True)
        time.sleep(self.slow_s)


def _reporting_class(product: type[Any], inside: str, printer: _StepPrinter) -> type[Any]:
    """Return a subclass of the product's store that prints its steps."""

    class StepReporter(product):  # type: ignore[misc]
        def apply(self, part: Any, changes: Any, before: Any, after: Any, fence: Any) -> None:
            printer.batch = after.batch
            printer.report("applying")
            super().apply(part, changes, before, after, fence)
            print(f"applied {after.batch}", flush=True)

    def run_and_report(self: Any, *arguments: Any) -> Any:
        result = getattr(super(StepReporter, self), inside)(*arguments)
        printer.report("inside")
        return result

    setattr(StepReporter, inside, run_and_report)
    return StepReporter


# The product with one protection removed


def separate_commits(kind: StoreFaults) -> None:
    """Commit the position before the rows."""
    product = kind.store_class()
    apply = product.apply

    def apply_in_two_steps(self: Any, part: Any, changes: Any, before: Any, after: Any, fence: Any) -> None:
        no_changes = copy.copy(changes)
        assert hasattr(no_changes, "_last")
        no_changes._last = {}
        apply(self, part, no_changes, before, after, fence)
        time.sleep(0.01)
        apply(self, part, changes, after, after, fence)

    patch(product, "apply", apply_in_two_steps)


def dead_letters_last(kind: StoreFaults) -> None:
    """Move the position past an invalid value before its dead letter is written."""
    write, apply = dead_letters.DeadLetters.write, work.PartWork._apply
    delayed: list[Any] = []

    def delay(self: Any, letters: Any) -> None:
        delayed.append((self, letters))

    def apply_and_write(self: Any, target: Any, batch: Any) -> None:
        apply(self, target, batch)
        if delayed:
            time.sleep(0.03)
        while delayed:
            write(*delayed.pop())

    patch(dead_letters.DeadLetters, "write", delay)
    patch(work.PartWork, "_apply", apply_and_write)


PROTECTIONS: dict[str, Callable[[StoreFaults], None]] = {
    "fence": lambda kind: kind.remove_fence(kind.store_class()),
    "position": lambda kind: kind.remove_position_check(kind.store_class()),
    "atomic-commit": separate_commits,
    "dead-letters-first": dead_letters_last,
}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="faults.views.follower_process")
    parser.add_argument("bootstrap")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("address")
    parser.add_argument("flow")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--without", choices=sorted(PROTECTIONS))
    options = parser.parse_args(words)
    kind, printer = store_faults(options.kind), _StepPrinter()
    printer.slow_s = options.slow / 1_000
    if options.without:
        PROTECTIONS[options.without](kind)
    reporting_class = _reporting_class(kind.store_class(), kind.inside, printer)
    _, flow, view = view_of(options.flow)
    follower = Follower(
        view,
        [flow],
        Cluster(options.bootstrap, timeout_s=5.0),
        lambda: kind.open(reporting_class, options.address, view.name),
        print_line=lambda line: print(f"printed {line}", flush=True),
    )
    try:
        follower.run(threading.Event())
    except StaleWriter as error:
        print(f"refused {error.message}", flush=True)


class FollowerProcess(LineProcess):
    def __init__(
        self,
        bootstrap: str,
        kind: str,
        address: str,
        flow: str,
        *,
        slow_ms: float = 0.0,
        without: str = "",
    ) -> None:
        words = [bootstrap, kind, address, flow, "--slow", str(slow_ms)]
        words += ["--without", without] if without else []
        super().__init__("faults.views.follower_process", *words)

    def wait_for(self, word: str, number: int) -> None:
        """Wait for the step of this batch, or of a later batch."""
        deadline = time.monotonic() + _WAIT_S_MAX
        while self.last(word) < number:
            if self.has_ended or time.monotonic() > deadline:
                raise AssertionError(f"the follower never printed {word} {number}: {self.lines[-5:]}")
            time.sleep(0.0005)

    def last(self, word: str) -> int:
        numbers = [int(line.split()[1]) for line in self.lines if line.startswith(f"{word} ")]
        return numbers[-1] if numbers else -2

    @property
    def is_within(self) -> bool:
        """Whether the follower is applying a batch."""
        steps = [
            line.split()[0] for line in self.lines if line.split()[0] in ("applying", "inside", "applied")
        ]
        return bool(steps) and steps[-1] != "applied"

    def rss_mb(self) -> float:
        return rss_mb(self.pid, "VmHWM")


if __name__ == "__main__":
    main(sys.argv[1:])
