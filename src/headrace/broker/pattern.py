"""A regular expression that a client sends, in RE2's syntax, as in Apache Kafka. It must match a whole text.

RE2 does not backtrack: matching takes at most one step per byte of text and instruction of the compiled program. The
pattern's bytes, the memory of its program and the steps of one search are bounded here. A search that is not short runs
in a thread, in slices: RE2 releases the interpreter lock while it matches, and a cancelled search ends with its slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

import re2

from headrace.errors import HeadraceError

__all__ = ["InvalidPattern", "Pattern", "search"]

# Parsing is the one part that holds the event loop: a few hundred bytes of Unicode classes take milliseconds.
_PATTERN_BYTES_MAX = 512
# Of the program, and of what RE2 caches while it matches.
_COMPILED_BYTES_MAX = 256 << 10
# A byte costs about as much in the smallest program as in one of so many instructions.
_INSTRUCTIONS_MIN = 64
_STEPS_MAX = 1 << 30
_INLINE_STEPS_MAX = 1 << 18
_SLICE_STEPS_MAX = 1 << 22


class InvalidPattern(HeadraceError):
    code = "HR-BROKER-PATTERN"


class Pattern:
    def __init__(self, text: str) -> None:
        """Raises ``InvalidPattern`` if the text does not compile within the limits."""
        size = len(text.encode())
        if size > _PATTERN_BYTES_MAX:
            raise InvalidPattern(
                f"the pattern has {size} bytes (limit {_PATTERN_BYTES_MAX})",
                hint="send a shorter pattern, or filter the whole list in the client",
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
                f"the pattern {text!r} does not compile: {reason.decode(errors='replace')}",
                hint="use RE2's syntax (https://github.com/google/re2/wiki/Syntax), or a smaller pattern",
            ) from error
        finally:
            # RE2's module keeps 128 compiled patterns otherwise.
            re2.purge()
        self._instructions: int = max(self._compiled.programsize, _INSTRUCTIONS_MIN)

    def matches(self, text: str) -> bool:
        return self._compiled.fullmatch(text.encode()) is not None

    def steps(self, text: str) -> int:
        """The most steps that matching the text takes."""
        return self._instructions * len(text) * (1 if text.isascii() else 4)


async def search(pattern: Pattern, texts: Sequence[str], executor: Executor) -> list[bool]:
    """For each text whether the pattern matches it. Raises ``InvalidPattern`` if that takes too many steps."""
    steps = sum(map(pattern.steps, texts))
    if steps <= _INLINE_STEPS_MAX:
        return _match_all(pattern, texts)
    if steps > _STEPS_MAX:
        raise InvalidPattern(
            f"the pattern takes up to {steps} steps on {len(texts)} texts (limit {_STEPS_MAX})",
            hint="send a simpler pattern, or filter the whole list in the client",
        )
    loop = asyncio.get_running_loop()
    found: list[bool] = []
    for part in _slices(pattern, texts):
        found += await loop.run_in_executor(executor, _match_all, pattern, part)
    return found


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
