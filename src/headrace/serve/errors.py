"""What is answered when something cannot be: a status of HTTP, a stable code, and the next step.

ServeError                    (HR-SERVE-…)
├── RequestUnfit        400   a parameter, a header or a body that is not as it must be
├── FilterUnfit         400   a filter or a sort that cannot be read
├── CursorUnfit         400   a cursor that no answer gave
├── TokenUnfit          400   ``after`` is no token, or says nothing about this view
├── HostUnknown         400   a Host that this server does not have
├── NotLoggedIn         401   no token, or none that is known
├── NotAllowed          403   a token without the scope
├── OriginRefused       403   a page of another origin
├── ForwardedRefused    403   a proxy forwarded the request, and there are no tokens
├── NotThere            404   no such route, view, topic or row
├── MethodUnknown       405
├── ReceiptTooSlow      408   the body did not come in time
├── TokenOutdated       409   ``after`` is of a topic or a generation that is gone
├── ViewMoved           409   the view is at another position than the first page
├── TopicDerived        409   a flow writes the topic, nobody else may
├── ReplayUnderWay      409   dead letters are being written back already
├── ProofUnderWay       409   another view is being verified
├── ProofElsewhere      409   the view cannot be verified by this server
├── RecordsGone         410   what was asked for was deleted from the log
├── BodyTooLarge        413
├── MediaUnknown        415
├── KeyReused           422   an Idempotency-Key that came with another body before
├── ShareTaken          429   the token has all that one token may have
├── TooBusy             503   more questions than can be answered at a time
├── Draining            503   the server is about to stop
├── NotServing          503   nothing of the view can be read yet, or not now
├── OutcomeUnknown      504   records may have been written or not
└── TooLate             504   the view has not come as far as was waited for
"""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError

__all__ = [
    "BodyTooLarge",
    "CursorUnfit",
    "Draining",
    "FilterUnfit",
    "ForwardedRefused",
    "HostUnknown",
    "KeyReused",
    "MediaUnknown",
    "MethodUnknown",
    "NotAllowed",
    "NotLoggedIn",
    "NotServing",
    "NotThere",
    "OriginRefused",
    "OutcomeUnknown",
    "ProofElsewhere",
    "ProofUnderWay",
    "ReceiptTooSlow",
    "RecordsGone",
    "ReplayUnderWay",
    "RequestUnfit",
    "ServeError",
    "ShareTaken",
    "TokenOutdated",
    "TokenUnfit",
    "TooBusy",
    "TooLate",
    "TopicDerived",
    "ViewMoved",
]


class ServeError(HeadraceError):
    code = "HR-SERVE-FAILED"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        hint: str = "",
        members: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.members = members or {}
        """More of the answer, for a program: a position, for example."""
        self.headers = headers or {}


class RequestUnfit(ServeError):
    code, status = "HR-SERVE-REQUEST", 400


class FilterUnfit(ServeError):
    code, status = "HR-SERVE-FILTER", 400


class CursorUnfit(ServeError):
    code, status = "HR-SERVE-CURSOR", 400


class TokenUnfit(ServeError):
    code, status = "HR-SERVE-AFTER", 400


class HostUnknown(ServeError):
    code, status = "HR-SERVE-HOST", 400


class NotLoggedIn(ServeError):
    code, status = "HR-SERVE-LOGIN", 401


class NotAllowed(ServeError):
    code, status = "HR-SERVE-SCOPE", 403


class OriginRefused(ServeError):
    code, status = "HR-SERVE-ORIGIN", 403


class ForwardedRefused(ServeError):
    code, status = "HR-SERVE-FORWARDED", 403


class NotThere(ServeError):
    code, status = "HR-SERVE-NOT-THERE", 404


class MethodUnknown(ServeError):
    code, status = "HR-SERVE-METHOD", 405


class ReceiptTooSlow(ServeError):
    code, status = "HR-SERVE-SLOW", 408
    retriable = True


class TokenOutdated(ServeError):
    code, status = "HR-SERVE-AFTER-OUTDATED", 409


class ViewMoved(ServeError):
    code, status = "HR-SERVE-MOVED", 409
    retriable = True


class TopicDerived(ServeError):
    code, status = "HR-SERVE-DERIVED", 409


class ReplayUnderWay(ServeError):
    code, status = "HR-SERVE-REPLAYING", 409
    retriable = True


class ProofUnderWay(ServeError):
    code, status = "HR-SERVE-PROVING", 409
    retriable = True


class ProofElsewhere(ServeError):
    code, status = "HR-SERVE-PROOF", 409


class RecordsGone(ServeError):
    code, status = "HR-SERVE-GONE", 410


class BodyTooLarge(ServeError):
    code, status = "HR-SERVE-SIZE", 413


class MediaUnknown(ServeError):
    code, status = "HR-SERVE-MEDIA", 415


class KeyReused(ServeError):
    code, status = "HR-SERVE-KEY-REUSED", 422


class ShareTaken(ServeError):
    code, status = "HR-SERVE-SHARE", 429
    retriable = True


class TooBusy(ServeError):
    code, status = "HR-SERVE-BUSY", 503
    retriable = True


class Draining(ServeError):
    code, status = "HR-SERVE-DRAINING", 503
    retriable = True


class NotServing(ServeError):
    code, status = "HR-SERVE-NOT-SERVING", 503
    retriable = True


class OutcomeUnknown(ServeError):
    code, status = "HR-SERVE-OUTCOME", 504
    retriable = True


class TooLate(ServeError):
    code, status = "HR-SERVE-LATE", 504
    retriable = True
