"""The begin of a connection: encryption is declined, and who is there says a name and a token as the password.

SSL or GSS request   N, and it begins again
cancel request       the statement of another connection is stopped; nothing is answered
startup              protocol 3; whatever it asks for beyond 3.0 is told not to be there
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.serve.pgwire import frames
from headrace.serve.pgwire.channel import Channel, Ended
from headrace.serve.pgwire.frames import Fields, Unfit
from headrace.serve.scope import READ_VIEW
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Login", "greeted"]

_PASSWORD_BYTES_MAX = 1_000
_NAME_CHARS_MAX = 63
_EXTENSION = "_pq_."


@dataclass(frozen=True, slots=True)
class Login:
    """Who it is: looked at with each statement again, since a token may be revoked, or the first one made."""

    user: str
    database: str
    token: str

    def caller(self, served: Served, anybody: Caller) -> Caller:
        unknown = None if served.tokens.are_needed() else anybody
        found = served.tokens.caller(self.token) if self.token else unknown
        if found is None or not found.scopes:
            raise Ended(
                "login",
                frames.error(
                    *("28P01", "the token is not known, was revoked, or has expired"),
                    hint="the password is a token: headrace token create makes one",
                    fatal=True,
                ),
            )
        if not found.may_some(READ_VIEW):
            told = f"the token has no scope {READ_VIEW}, and nothing else is answered here"
            hint = f"headrace token create NAME --scope {READ_VIEW}:NAME"
            raise Ended("scope", frames.error("42501", told, hint=hint, fatal=True))
        return found


async def greeted(channel: Channel, served: Served, cancel: Callable[[int, int], None]) -> Login | None:
    """None where it was a cancel request."""
    for _ in range(3):
        body = await channel.first()
        code = body.whole()
        if code in (frames.SSL, frames.GSS):
            await channel.send(b"N")
            continue
        if code == frames.CANCEL:
            cancel(body.whole(), body.whole())
            return None
        if code >> 16 != 3:
            raise Unfit(f"protocol {code >> 16}.{code & 0xFFFF}; 3.0 is spoken")
        return await _logged_in(channel, served, body, code)
    raise Unfit("three times asked for encryption")


async def _logged_in(channel: Channel, served: Served, body: Fields, code: int) -> Login:
    told: dict[str, str] = {}
    while name := body.text():
        told[name] = body.text()
    extensions = [name for name in told if name.startswith(_EXTENSION)]
    if code != frames.PROTOCOL or extensions:
        await channel.send(frames.older_protocol(extensions))
    token = ""
    if served.tokens.are_needed():
        await channel.send(frames.message(b"R", struct.pack(">i", 3)))
        letter, raw = await channel.next(_PASSWORD_BYTES_MAX)
        token = raw.text() if letter == b"p" else ""
    return Login(
        told.get("user", "")[:_NAME_CHARS_MAX] or "headrace",
        told.get("database", "")[:_NAME_CHARS_MAX] or served.app.name,
        token,
    )
