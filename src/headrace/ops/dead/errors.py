"""Errors when dead letters are read or replayed.

DeadError
├── NoDeadTopic        HR-DEAD-TOPIC       the app has no dead-letter topic of this name
├── NoSuchLetter       HR-DEAD-LETTER      no letter exists at this partition and offset
├── TooManyLetters     HR-DEAD-MANY        more letters are named than one request accepts
├── CorrectionRefused  HR-DEAD-CORRECTION  the corrected value would be rejected again
└── ReplayStopped      HR-DEAD-STOPPED     the log did not respond in time; the written letters are marked

If a single letter cannot be written back, the result of the replay reports it, and no error is raised.
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["CorrectionRefused", "DeadError", "NoDeadTopic", "NoSuchLetter", "ReplayStopped", "TooManyLetters"]


class DeadError(HeadraceError):
    code = "HR-DEAD"


class NoDeadTopic(DeadError):
    code = "HR-DEAD-TOPIC"


class NoSuchLetter(DeadError):
    code = "HR-DEAD-LETTER"


class TooManyLetters(DeadError):
    code = "HR-DEAD-MANY"


class CorrectionRefused(DeadError):
    code = "HR-DEAD-CORRECTION"


class ReplayStopped(DeadError):
    code = "HR-DEAD-STOPPED"
    retriable = True
