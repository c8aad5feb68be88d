"""A follower as a process of its own, so that it can be stopped and killed like one.

    python -m bench.faults.follower_process BOOTSTRAP KIND ADDRESS FLOW [--slow MS] [--without PROTECTION]

KIND and ADDRESS are a store's, as ``bench.faults.store_kinds`` has them.

It says what it does: ``applying 3`` before the transaction of batch 3, ``inside 3`` within it, ``applied 3`` behind it,
and ends with ``refused REASON`` when it is refused. ``--slow`` is how long it stays at each of the first two, so that
whoever listens can strike there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from bench.faults.flow_by_hand import view_of
from bench.faults.forking import ROOT, dying_with_us
from bench.faults.store_kinds import KINDS, StoreKind
from bench.process_tree import rss_mb
from headrace.client.cluster import Cluster
from headrace.views import dead, following
from headrace.views.changes import Changes
from headrace.views.errors import StaleWriter
from headrace.views.follower import Follower

__all__ = ["PROTECTIONS", "FollowerProcess"]

_WAIT_S_MAX = 240.0


class _Saying:
    """What the process says of the batch that it applies."""

    slow_s = 0.0
    batch = -1

    def say(self, word: str) -> None:
        print(f"{word} {self.batch}", flush=True)
        time.sleep(self.slow_s)


def _announcing(product: type[Any], inside: str, saying: _Saying) -> type[Any]:
    """The product's store, that says what it does."""

    class Announcing(product):  # type: ignore[misc]
        def apply(self, part: Any, changes: Any, before: Any, after: Any, fence: Any) -> None:
            saying.batch = after.batch
            saying.say("applying")
            super().apply(part, changes, before, after, fence)
            print(f"applied {after.batch}", flush=True)

    def found(self: Any, *given: Any) -> Any:
        answer = getattr(super(Announcing, self), inside)(*given)
        saying.say("inside")
        return answer

    setattr(Announcing, inside, found)
    return Announcing


# The product with one protection taken out


def not_together(kind: StoreKind) -> None:
    """The position is committed before the rows."""
    product = kind.product()
    apply = product.apply

    def in_two_steps(self: Any, part: Any, changes: Any, before: Any, after: Any, fence: Any) -> None:
        nothing = Changes.__new__(Changes)
        vars(nothing).update(vars(changes), _last={})
        apply(self, part, nothing, before, after, fence)
        time.sleep(0.01)
        apply(self, part, changes, after, after, fence)

    product.apply = in_two_steps


def dead_letters_last(kind: StoreKind) -> None:
    """The position moves past a value that does not fit, and its dead letter follows."""
    write, apply = dead.DeadLetters.write, following.Following._apply
    later: list[Any] = []

    def note(self: Any, letters: Any) -> None:
        later.append((self, letters))

    def and_then(self: Any, work: Any, piece: Any) -> None:
        apply(self, work, piece)
        if later:
            time.sleep(0.03)
        while later:
            write(*later.pop())

    dead.DeadLetters.write = note  # type: ignore[method-assign]
    following.Following._apply = and_then  # type: ignore[method-assign]


PROTECTIONS: dict[str, Callable[[StoreKind], None]] = {
    "fence": lambda kind: kind.no_fence(kind.product()),
    "position": lambda kind: kind.no_position(kind.product()),
    "together": not_together,
    "dead letters first": dead_letters_last,
}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.faults.follower_process")
    parser.add_argument("bootstrap")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("address")
    parser.add_argument("flow")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--without", choices=sorted(PROTECTIONS))
    options = parser.parse_args(words)
    kind, saying = KINDS[options.kind], _Saying()
    saying.slow_s = options.slow / 1_000
    if options.without:
        PROTECTIONS[options.without](kind)
    announcing = _announcing(kind.product(), kind.inside, saying)
    _, flow, view = view_of(options.flow)
    follower = Follower(
        view,
        [flow],
        Cluster(options.bootstrap, timeout_s=5.0),
        lambda: kind.open(announcing, options.address, view.name),
        tell=lambda line: print(f"told {line}", flush=True),
    )
    try:
        follower.run(threading.Event())
    except StaleWriter as error:
        print(f"refused {error.message}", flush=True)


class FollowerProcess:
    """The process and all that it said."""

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
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*dying_with_us(), sys.executable, "-m", "bench.faults.follower_process", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, said: IO[str]) -> None:
        for line in said:
            self.lines.append(line.strip())

    def wait_for(self, word: str, number: int) -> None:
        """Until it has said the word of this batch, or of a later one."""
        deadline = time.monotonic() + _WAIT_S_MAX
        while self.last(word) < number:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the follower never said {word} {number}: {self.lines[-5:]}")
            time.sleep(0.0005)

    def last(self, word: str) -> int:
        found = [int(line.split()[1]) for line in self.lines if line.startswith(f"{word} ")]
        return found[-1] if found else -2

    @property
    def is_within(self) -> bool:
        """Whether it has begun to apply a batch, and not said that it is done."""
        said = [
            line.split()[0] for line in self.lines if line.split()[0] in ("applying", "inside", "applied")
        ]
        return bool(said) and said[-1] != "applied"

    def sleep(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        # What it said before is in the pipe, or was read already.
        time.sleep(0.05)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; and what it said until then is read to the end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._end()

    def finish(self, within_s: float = _WAIT_S_MAX) -> bool:
        """Whether it ended by itself."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self._process.wait()
        self._reader.join(_WAIT_S_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def rss_mb(self) -> float:
        return rss_mb(self._process.pid, "VmHWM")


if __name__ == "__main__":
    main(sys.argv[1:])
