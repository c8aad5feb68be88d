"""What runs in the server as one: looks as of one moment, and changes that depend on what was seen.

A script is neither interrupted nor undone. So each of these checks all that it depends on before it writes anything,
and what it then does cannot fail: the keys are hashes, which the checks have read.

A server that has used up its memory refuses whatever may take more of it, but nothing behind the first write of a
script, so that none ends half-way. Of what is written here the first always takes none (HDEL, UNLINK): deletions, a
swap, which frees a whole view, and a follower that takes its view over, go on without memory. What does take some, the
rows of a batch, is sent by MULTI instead, and refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.views.redis.server import Command

__all__ = ["guarded", "look", "look_with_row", "settled"]

_LOOK = """local found = {}
for at, command in ipairs(ARGV) do found[at] = redis.call(command, KEYS[at]) end
return found"""

_LOOK_WITH_ROW = """return {redis.call('HGETALL', KEYS[1]), redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3]),
  redis.call('HGET', KEYS[2], ARGV[1])}"""

# The end of a batch: its position, and how many rows there are.
_SETTLE = """local function settle(known, rows, part, position)
  local many = redis.call('HLEN', rows)
  redis.call('HDEL', known, part .. '.rows')
  redis.call('HSET', known, part, position, part .. '.rows', many)
end
"""

_SETTLED = f"{_SETTLE}settle(KEYS[1], KEYS[2], ARGV[1], ARGV[2])"

_GUARDED = f"""{_SETTLE}local at = 0
local function word() at = at + 1 return ARGV[at] end
for _ = 1, tonumber(word()) do
  local found = redis.call('HGET', KEYS[1], word()) or ''
  if found ~= word() then return 0 end
end
for key = 2, #KEYS do
  if redis.call('HLEN', KEYS[key]) ~= tonumber(word()) then return 0 end
end
while at < #ARGV do
  local words = tonumber(word())
  if ARGV[at + 1] == 'SETTLE' then
    settle(unpack(ARGV, at + 2, at + words))
  else
    redis.call(unpack(ARGV, at + 1, at + words))
  end
  at = at + words
end
return 1"""


def look(reads: Sequence[tuple[str, str]]) -> Command:
    """The answers to commands that each read one key."""
    return "EVAL", _LOOK, len(reads), *(key for _, key in reads), *(command for command, _ in reads)


def look_with_row(known: str, serving: str, building: str, field: bytes) -> Command:
    """What is noted of a view, and one row of what serves; none is nil."""
    return "EVAL", _LOOK_WITH_ROW, 3, known, serving, building, field


def settled(known: str, rows: str, part: str, position: bytes) -> Command:
    """The last command of a transaction that changes rows."""
    return "EVAL", _SETTLED, 2, known, rows, part, position


def guarded(
    known: str, expected: Mapping[str, str], sizes: Mapping[str, int], commands: Iterable[Command]
) -> Command:
    """Commands that happen, and answer 1, if the fields of a hash are what is expected, empty for none, and other
    hashes have their sizes. ``SETTLE`` is a command here, with what ``settled`` takes.
    """
    words: list[str | bytes | int] = [len(expected)]
    for name, text in expected.items():
        words += (name, text)
    words += sizes.values()
    for command in commands:
        words += (len(command), *command)
    return "EVAL", _GUARDED, 1 + len(sizes), known, *sizes, *words
