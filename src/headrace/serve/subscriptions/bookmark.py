"""Where a subscriber was, as an opaque text: a cursor of a subscription.

It says for which view and which question, in which epoch, how far, and when that was told. Whoever sends one may have
made it up: it gives no rights, and what is read from the log because of it is checked against the log
(``headrace.serve.subscriptions.backfill``), since others are told of it too.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from headrace.serve.errors import CursorUnfit
from headrace.serve.subscriptions.epoch import Epoch
from headrace.serve.subscriptions.errors import CursorOld
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.wanted import Wanted

__all__ = ["CHARS_MAX", "Bookmark"]

CHARS_MAX = 16_000
_OFFSET_MAX = 2**63 - 1


class Bookmark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    wanted: bytes
    epoch: bytes
    batch: int
    progress_offset: int
    offsets: dict[int, int]
    told_ms: int

    @classmethod
    def at(cls, wanted: Wanted, epoch: Epoch, place: Place, now_ms: int) -> Bookmark:
        offsets = dict(place.offsets)
        return cls(1, wanted.digest, epoch.digest, place.batch, place.progress_offset, offsets, now_ms)

    @classmethod
    def told(cls, text: str, wanted: Wanted) -> Bookmark:
        if len(text) <= CHARS_MAX:
            try:
                padded = text + "=" * (-len(text) % 4)
                found = _decoder.decode(base64.b64decode(padded, b"-_", validate=True))
            except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
                pass
            else:
                if found.version == 1 and found.wanted == wanted.digest:
                    return found
        raise CursorUnfit(
            "cursor is not one of a subscription to this view with this question",
            hint="send the cursor of the last message that had one, and ask as you did then",
        )

    def tell(self) -> str:
        return base64.urlsafe_b64encode(_encoder.encode(self)).rstrip(b"=").decode()

    def place(self, epoch: Epoch) -> Place:
        """Raises ``CursorOld`` where it is of another epoch."""
        if self.epoch != epoch.digest:
            raise CursorOld(
                "the view was rebuilt, its flow has a new generation, or its topic is another one"
            )
        fits = set(self.offsets) == set(range(epoch.partitions)) and self.batch >= -1
        fits = fits and all(0 <= at <= _OFFSET_MAX for at in (*self.offsets.values(), self.progress_offset))
        if not fits:
            raise CursorUnfit("cursor names places that no topic has", hint="send it as it was told")
        return Place(self.offsets, self.batch, self.progress_offset, epoch.by_batch)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Bookmark)
