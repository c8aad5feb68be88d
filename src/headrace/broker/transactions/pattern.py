"""A regular expression over transactional ids, in a time that grows with the text and not with what is tried.

The expression comes from a client, and Python's own engine can be made to search for hours. Here an expression
becomes a small automaton, and all its states move through the text side by side. What Kafka's engine (RE2) knows and
is not known here is refused, never misread: literals, ``.``, classes, groups, ``|``, ``*``, ``+``, ``?``,
``{m,n}``, ``\\d \\w \\s`` and their opposites are known, and ``^`` and ``$`` at the two ends.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Pattern", "PatternRefused"]

_CHARS_MAX = 1_024
_STATES_MAX = 2_000
_DEPTH_MAX = 50
_SPECIAL = set("\\.[](){}*+?|^$")

Test = Callable[[str], bool]


class PatternRefused(ValueError):
    """It is no regular expression, or not one that is known here."""


class Pattern:
    """Matches whole texts."""

    def __init__(self, text: str) -> None:
        if len(text) > _CHARS_MAX:
            raise PatternRefused(f"it has {len(text)} characters, and {_CHARS_MAX} are taken")
        self._text = text
        self._at = 0
        self._depth = 0
        #: Of each state: what it takes (``None``: nothing), and where it leads.
        self._tests: list[Test | None] = []
        self._next: list[list[int]] = []
        if self._peek() == "^":
            self._at += 1
        end = self._state(None)
        if text.endswith("$") and not text.endswith("\\$"):
            self._text = text[:-1]
        self._start = self._alternatives(end)
        if self._at < len(self._text):
            raise PatternRefused(f"{text!r} does not go on with {self._text[self._at]!r} at {self._at}")
        self._end = end

    def matches(self, text: str) -> bool:
        states = self._reach({self._start})
        for char in text:
            moved: set[int] = set()
            for state in states:
                test = self._tests[state]
                if test is not None and test(char):
                    moved.update(self._next[state])
            states = self._reach(moved)
            if not states:
                return False
        return self._end in states

    def _reach(self, states: set[int]) -> set[int]:
        """These and all that can be reached from them without taking anything."""
        found = set(states)
        todo = list(states)
        while todo:
            state = todo.pop()
            if self._tests[state] is None:
                for reached in self._next[state]:
                    if reached not in found:
                        found.add(reached)
                        todo.append(reached)
        return found

    def _state(self, test: Test | None, *to: int) -> int:
        if len(self._tests) >= _STATES_MAX:
            raise PatternRefused(f"{self._text[:80]!r} is too large")
        self._tests.append(test)
        self._next.append(list(to))
        return len(self._tests) - 1

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise PatternRefused(f"{self._text!r} ends too soon")
        self._at += 1
        return char

    # Every part is made from its end: it is told the state that follows it and gives the one that begins it.

    def _alternatives(self, then: int) -> int:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PatternRefused("groups are nested too deeply")
        starts = [self._sequence(then)]
        while self._peek() == "|":
            self._at += 1
            starts.append(self._sequence(then))
        self._depth -= 1
        return starts[0] if len(starts) == 1 else self._state(None, *starts)

    def _sequence(self, then: int) -> int:
        parts: list[tuple[int, int, int, int]] = []
        while self._peek() not in ("", "|", ")"):
            begin = self._at
            self._atom(then)
            end = self._at
            parts.append((begin, end, *self._repeat()))
        for begin, end, low, high in reversed(parts):
            then = self._repeated(begin, end, low, high, then)
        return then

    def _repeat(self) -> tuple[int, int]:
        """How often the atom before is there, at least and at the most; −1 is without end."""
        low, high = 1, 1
        char = self._peek()
        if char in ("*", "+", "?"):
            self._at += 1
            low, high = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[char]
        elif char == "{":
            close = self._text.find("}", self._at)
            first, comma, last = self._text[self._at + 1 : close].partition(",")
            if close < 0 or not first.isdigit() or not (last.isdigit() or not last) or len(first + last) > 8:
                raise PatternRefused(f"{self._text!r} has a count that is none")
            low = int(first)
            high = low if not comma else int(last) if last else -1
            self._at = close + 1
            if high != -1 and high < low:
                raise PatternRefused(f"{self._text!r} has a count that is none")
        if self._peek() == "?" and (low, high) != (1, 1):
            # Lazy or not, the whole text is matched or not.
            self._at += 1
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            raise PatternRefused(f"{self._text!r} repeats a repetition")
        return low, high

    def _repeated(self, begin: int, end: int, low: int, high: int, then: int) -> int:
        def copy(follow: int) -> int:
            at, self._at = self._at, begin
            start = self._atom(follow)
            assert self._at == end
            self._at = at
            return start

        if high == -1:
            loop = self._state(None, then)
            self._next[loop].append(copy(loop))
            then = loop
        else:
            for _ in range(high - low):
                then = self._state(None, then, copy(then))
        for _ in range(low):
            then = copy(then)
        return then

    def _atom(self, then: int) -> int:
        char = self._take()
        if char == "(":
            if self._peek() == "?":
                if self._text[self._at : self._at + 2] != "?:":
                    raise PatternRefused(f"{self._text!r} has a group of a kind that is not known here")
                self._at += 2
            start = self._alternatives(then)
            if self._take() != ")":
                raise PatternRefused(f"{self._text!r} leaves a group open")
            return start
        if char == ".":
            return self._state(lambda c: c != "\n", then)
        if char == "[":
            return self._state(self._class(), then)
        if char == "\\":
            return self._state(self._escape(), then)
        if char in _SPECIAL:
            raise PatternRefused(f"{self._text!r} has a {char!r} in a place that is not known here")
        return self._state(lambda c: c == char, then)

    def _escape(self) -> Test:
        char = self._take()
        known: dict[str, Test] = {
            "d": lambda c: "0" <= c <= "9",
            "w": lambda c: c.isascii() and (c.isalnum() or c == "_"),
            "s": lambda c: c in " \t\n\r\f",
        }
        if char in known:
            return known[char]
        if char.lower() in known:
            test = known[char.lower()]
            return lambda c: not test(c)
        if char.isalnum():
            raise PatternRefused(f"{self._text!r} has an escape \\{char} that is not known here")
        return lambda c: c == char

    def _class(self) -> Test:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        tests: list[Test] = []
        first = True
        while (char := self._take()) != "]" or first:
            first = False
            if char == "[" and self._peek() == ":":
                raise PatternRefused(f"{self._text!r} has a class that is not known here")
            if char == "\\":
                tests.append(self._escape())
                continue
            low = high = char
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", "", "\\"):
                self._at += 1
                high = self._take()
                if high < low:
                    raise PatternRefused(f"{self._text!r} has a range that is none")
            tests.append(lambda c, low=low, high=high: low <= c <= high)  # type: ignore[misc]
        return lambda c: any(test(c) for test in tests) != negated
