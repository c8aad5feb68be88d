"""Tokens: who may do what. A file that holds no secrets, only what they hash to.

    {"format": 1, "tokens": [{"id": "k3f9…", "name": "dashboard", "hash": "…", "scopes": ["read:view:*"],
                              "created_ms": 1763251200000, "expires_ms": null, "revoked_ms": null}]}

A token is ``hr_<id>_<secret>``: by the id it is found, and the secret, 256 random bits, is compared with its SHA-256 in
a time that does not depend on where they differ. A slow hash would protect guessable passwords; these are none.

The file is made for its owner alone, and replaced in one step, by one at a time (a lock beside it). Once there is a
file, nobody is let in without a token again, also when all tokens in it were revoked. Servers see a change within a
second.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.errors import ConfigError
from headrace.private import make_private_dir, private
from headrace.serve.scope import ADMIN, Scope, parse_scope

__all__ = ["Caller", "Token", "TokenBook", "Tokens", "tokens_path"]

_SECRET_BYTES = 32
_ID_BYTES = 8
_TEXT = re.compile(r"hr_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_LOOK_S = 1.0
_NOBODY = hashlib.sha256(b"").hexdigest()


def tokens_path(data: Path) -> Path:
    return data / "tokens.json"


class Token(msgspec.Struct, frozen=True):
    id: str
    name: str
    hash: str
    scopes: list[str]
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None

    def state(self, now_ms: int) -> str:
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "active"


class _Book(msgspec.Struct, frozen=True):
    format: int = 1
    tokens: list[Token] = []


class Caller(msgspec.Struct, frozen=True):
    """Who asks, and what they may."""

    name: str
    token_id: str
    scopes: tuple[Scope, ...]

    def may(self, action: str, name: str = "") -> bool:
        return any(scope.allows(action, name) for scope in self.scopes)

    def may_some(self, action: str) -> bool:
        """Whether there is a name for which they may."""
        return any(scope.action in (action, ADMIN) for scope in self.scopes)


class TokenBook:
    """The file, for whoever changes it."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()

    def tokens(self) -> list[Token]:
        return list(_read(self.path).tokens)

    def create(self, name: str, scopes: Sequence[str], valid_s: int | None) -> tuple[Token, str]:
        """And its text, which nobody can be shown again."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot name a token", hint="use letters, digits, '.', '_' and '-'")
        if not scopes:
            raise ConfigError(
                "a token without a scope allows nothing", hint="give it one: --scope read:view:*"
            )
        told = [str(parse_scope(one)) for one in scopes]
        secret, number = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_hex(_ID_BYTES)
        now = self._clock.now_ms()
        expires = None if valid_s is None else now + valid_s * 1_000
        made = Token(number, name, _hash(secret), told, now, expires)
        with self._changing() as book:
            if any(one.name == name and one.state(now) == "active" for one in book.tokens):
                raise ConfigError(
                    f"there is an active token {name!r}",
                    hint=f"revoke it first: headrace token revoke {name}",
                )
            self._write(_Book(tokens=[*book.tokens, made]))
        return made, f"hr_{number}_{secret}"

    def revoke(self, name_or_id: str) -> Token:
        now = self._clock.now_ms()
        with self._changing() as book:
            found = [
                one for one in book.tokens if name_or_id in (one.name, one.id) and one.revoked_ms is None
            ]
            if not found:
                raise ConfigError(
                    f"there is no token {name_or_id!r} that could be revoked", hint="see: headrace token list"
                )
            gone = msgspec.structs.replace(found[-1], revoked_ms=now)
            self._write(_Book(tokens=[gone if one.id == gone.id else one for one in book.tokens]))
        return gone

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Book]:
        make_private_dir(self.path.parent)
        with open(self.path.with_suffix(".lock"), "a", opener=private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield _read(self.path)

    def _write(self, book: _Book) -> None:
        made = self.path.with_suffix(".new")
        with open(made, "wb", opener=private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(book)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        made.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Tokens:
    """For a server: who a token is, as the file says."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._looked = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Token] = {}
        self.needed = False
        """Whether anybody needs a token; once true, it stays."""
        self._look()

    def caller(self, text: str) -> Caller | None:
        self._look()
        found = _TEXT.fullmatch(text)
        token = self._known.get(found[1]) if found else None
        # As long for one that is not known.
        same = hmac.compare_digest(_hash(found[2] if found else ""), token.hash if token else _NOBODY)
        if token is None or not same or token.state(self._clock.now_ms()) != "active":
            return None
        return Caller(token.name, token.id, tuple(map(parse_scope, token.scopes)))

    def are_needed(self) -> bool:
        self._look()
        return self.needed

    def _look(self) -> None:
        now = self._clock.steady()
        if now - self._looked < _LOOK_S:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            # Who takes the file away takes nobody's rights away, and gives none.
            self._known = {}
            self._stamp = None
            self._looked = now
            return
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._known = {one.id: one for one in _read(self._path).tokens}
            self._stamp, self.needed = stamp, True
        # Not before: of a file that cannot be read, nobody's rights are known, and all are refused until it can be.
        self._looked = now


def _read(path: Path) -> _Book:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Book)
    except FileNotFoundError:
        return _Book()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the tokens in {path} cannot be read: {error}", hint="restore the file") from error
    if found.format != 1:
        raise ConfigError(f"{path} has format {found.format}, and this release reads 1")
    return found


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
