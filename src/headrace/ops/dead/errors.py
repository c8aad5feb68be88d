"""What keeps dead letters from being found or written back.

DeadError
├── NoDeadTopic        HR-DEAD-TOPIC       the app has no such topic of dead letters
├── NoSuchLetter       HR-DEAD-LETTER      there is no letter at the place, or none any more
├── TooManyLetters     HR-DEAD-MANY        more letters are named than one replay takes
└── ReplayStopped      HR-DEAD-STOPPED     the log has not taken them in time; what was written is, and is noted

That one letter cannot be written back is no error, but a part of the result.
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["DeadError", "NoDeadTopic", "NoSuchLetter", "ReplayStopped", "TooManyLetters"]


class DeadError(HeadraceError):
    code = "HR-DEAD"


class NoDeadTopic(DeadError):
    code = "HR-DEAD-TOPIC"


class NoSuchLetter(DeadError):
    code = "HR-DEAD-LETTER"


class TooManyLetters(DeadError):
    code = "HR-DEAD-MANY"


class ReplayStopped(DeadError):
    code = "HR-DEAD-STOPPED"
    retriable = True
