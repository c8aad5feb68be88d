"""The regular expression with which a client filters transactional ids.

As in Apache Kafka, the pattern uses RE2's syntax and must match the whole id. RE2 does not backtrack: for each byte of
text, it executes each instruction of the compiled program at most once. This module limits the pattern's bytes, the
memory of the compiled program, and the steps of one search. A long search runs in a thread, in slices. RE2 releases the
interpreter lock while it matches. A cancelled search ends after its current slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

import re2

from headrace.errors import HeadraceError

__all__ = ["InvalidPattern", "Pattern", "search"]

# Compilation blocks the event loop. A few hundred bytes of Unicode classes take milliseconds to compile.
_PATTERN_BYTES_MAX = 512
# For the compiled program, and for RE2's caches while it matches.
_COMPILED_BYTES_MAX = 256 << 10
# A smaller program needs about the same time per byte as a program with this many instructions.
_INSTRUCTIONS_MIN = 64
_STEPS_MAX = 1 << 30
_INLINE_STEPS_MAX = 1 << 18
_SLICE_STEPS_MAX = 1 << 22


class InvalidPattern(HeadraceError):
    code = "HR-BROKER-PATTERN"


class Pattern:
    def __init__(self, text: str) -> None:
        """Compile the text. Raises ``InvalidPattern`` if it is invalid or exceeds a limit."""
        size = len(text.encode())
        if size > _PATTERN_BYTES_MAX:
            raise InvalidPattern(
                f"the pattern has {size} bytes (limit {_PATTERN_BYTES_MAX})",
                hint="use a shorter pattern, or filter the whole list in the client",
            )
        options = re2.Options()
        options.max_mem = _COMPILED_BYTES_MAX
        options.log_errors = False
        options.never_capture = True
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            reason = error.args[0] if error.args else b""
            raise InvalidPattern(
                f"cannot compile the pattern {text!r}: {reason.decode(errors='replace')}",
                hint="use RE2's syntax (https://github.com/google/re2/wiki/Syntax), or a smaller pattern",
            ) from error
        finally:
            # Otherwise the re2 module caches 128 compiled patterns.
            re2.purge()
        self._instructions: int = max(self._compiled.programsize, _INSTRUCTIONS_MIN)

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text.encode()) is not None

    def steps(self, text: str) -> int:
        """Return the maximum number of steps to match the text."""
        return self._instructions * len(text) * (1 if text.isascii() else 4)


async def search(pattern: Pattern, texts: Sequence[str], executor: Executor) -> list[bool]:
    """Return for each text whether the pattern matches it. Raises ``InvalidPattern`` above the limit of steps."""
    steps = sum(map(pattern.steps, texts))
    if steps <= _INLINE_STEPS_MAX:
        return _match_all(pattern, texts)
    if steps > _STEPS_MAX:
        raise InvalidPattern(
            f"the pattern needs up to {steps} steps for {len(texts)} transactional ids (limit {_STEPS_MAX})",
            hint="use a simpler pattern, or filter the whole list in the client",
        )
    loop = asyncio.get_running_loop()
    matches: list[bool] = []
    for texts_slice in _slices(pattern, texts):
        matches += await loop.run_in_executor(executor, _match_all, pattern, texts_slice)
    return matches


def _match_all(pattern: Pattern, texts: Sequence[str]) -> list[bool]:
    return [pattern.matches(text) for text in texts]


def _slices(pattern: Pattern, texts: Sequence[str]) -> Iterator[Sequence[str]]:
    first = steps = 0
    for index, text in enumerate(texts):
        steps += pattern.steps(text)
        if steps >= _SLICE_STEPS_MAX:
            yield texts[first : index + 1]
            first, steps = index + 1, 0
    yield texts[first:]
