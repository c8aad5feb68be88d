"""What the console cannot answer.

ServeError
├── WhereUnfit          400   an expression that cannot be read, with where in it
├── PlaceUnknown        400   a place that is in no partition
├── GroupAtWork         409   a group whose members would commit over what is moved
└── SearchEnded         503   the process that searched is gone
"""

from __future__ import annotations

from headrace.serve.errors import ServeError

__all__ = ["GroupAtWork", "PlaceUnknown", "SearchEnded", "WhereUnfit"]


class WhereUnfit(ServeError):
    code, status = "HR-SERVE-WHERE", 400


class PlaceUnknown(ServeError):
    code, status = "HR-SERVE-PLACE", 400


class GroupAtWork(ServeError):
    code, status = "HR-SERVE-GROUP-ACTIVE", 409
    retriable = True


class SearchEnded(ServeError):
    code, status = "HR-SERVE-SEARCH", 503
    retriable = True
