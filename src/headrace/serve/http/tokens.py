"""API tokens and their scopes. The token file contains no secrets, only their hashes.

    {"format": 1, "tokens": [{"id": "k3f9…", "name": "dashboard", "hash": "…", "scopes": ["read:view:*"],
                              "created_ms": 1763251200000, "expires_ms": null, "revoked_ms": null}]}

A token is ``hr_<id>_<secret>``. The server finds the entry by the id, and compares the SHA-256 of the secret in
constant time. The secret has 256 random bits and cannot be guessed, so a slow password hash would not add security.

Only the file's owner can read the file. A writer locks ``tokens.lock`` and replaces the token file atomically.
Once the file exists, every request needs a token, even if all tokens are revoked. Servers detect a change within a
second.

A scope is a permission. Some permissions apply to a name or a prefix of names:

    read:view:revenue      read:view:shop-*      read:view:*
    read:topic:orders      write:topic:orders
    read:operations        metrics, and the lag of each view
    admin                  everything

``PERMISSIONS`` lists all permissions.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.errors import ConfigError
from headrace.files import make_private_dir, private
from headrace.serve.errors import NotAllowed, NotLoggedIn

__all__ = [
    "ADMIN",
    "ANONYMOUS",
    "LOCAL_ADMIN",
    "OPERATIONS",
    "PERMISSIONS",
    "PUBLIC",
    "READ_TOPIC",
    "READ_VIEW",
    "WRITE_TOPIC",
    "Caller",
    "Scope",
    "Token",
    "TokenBook",
    "TokenVerifier",
    "authorize",
    "bearer_token",
    "parse_scope",
    "tokens_path",
]

_SECRET_BYTES = 32
_ID_BYTES = 8
_TEXT = re.compile(r"hr_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_RELOAD_S = 1.0
_EMPTY_SECRET_HASH = hashlib.sha256(b"").hexdigest()


def tokens_path(data: Path) -> Path:
    return data / "tokens.json"


ADMIN = "admin"
READ_VIEW = "read:view"
READ_TOPIC = "read:topic"
WRITE_TOPIC = "write:topic"
OPERATIONS = "read:operations"
PUBLIC = ""
"""The permission of routes that need no token."""

PERMISSIONS = {READ_VIEW: True, READ_TOPIC: True, WRITE_TOPIC: True, OPERATIONS: False, ADMIN: False}
"""Maps each permission to whether it applies to a name."""


@dataclass(frozen=True, slots=True)
class Scope:
    permission: str
    name: str = ""
    """A name, or a prefix of names followed by ``*``."""

    def allows(self, permission: str, name: str = "") -> bool:
        if self.permission == ADMIN:
            return True
        if self.permission != permission:
            return False
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return self.name == name

    def __str__(self) -> str:
        return f"{self.permission}:{self.name}" if self.name else self.permission


def parse_scope(text: str) -> Scope:
    for permission, has_name in PERMISSIONS.items():
        if has_name and text.startswith(f"{permission}:"):
            name = text[len(permission) + 1 :]
            if name and "*" not in name[:-1] and name.isascii() and name.isprintable():
                return Scope(permission, name)
        elif not has_name and text == permission:
            return Scope(permission)
    forms = [f"{permission}:NAME" if has_name else permission for permission, has_name in PERMISSIONS.items()]
    raise ConfigError(f"invalid scope {text!r}", hint=f"use one of {', '.join(forms)}; a name may end in *")


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


class _TokenFile(msgspec.Struct, frozen=True):
    format: int = 1
    tokens: list[Token] = []


class Caller(msgspec.Struct, frozen=True):
    """The holder of a token, with its scopes."""

    name: str
    token_id: str
    scopes: tuple[Scope, ...]

    def may(self, permission: str, name: str = "") -> bool:
        return any(scope.allows(permission, name) for scope in self.scopes)

    def may_for_some_name(self, permission: str) -> bool:
        """True if a scope grants the permission for at least one name."""
        return any(scope.permission in (permission, ADMIN) for scope in self.scopes)


LOCAL_ADMIN = Caller("", "", (Scope(ADMIN),))
"""Every caller on this machine, as long as no tokens exist."""
ANONYMOUS = Caller("", "", ())
"""A caller that sent no token although tokens exist."""


class TokenBook:
    """Creates and revokes tokens in the file."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()

    def tokens(self) -> list[Token]:
        return list(_read(self.path).tokens)

    def create(self, name: str, scopes: Sequence[str], valid_s: int | None) -> tuple[Token, str]:
        """Create a token. Return its entry and its text, which cannot be recovered later."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"invalid token name {name!r}", hint="use letters, digits, '.', '_' and '-'")
        if not scopes:
            raise ConfigError("a token needs at least one scope", hint="add one: --scope read:view:*")
        parsed = [str(parse_scope(scope)) for scope in scopes]
        secret, token_id = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_hex(_ID_BYTES)
        now_ms = self._clock.now_ms()
        expires_ms = None if valid_s is None else now_ms + valid_s * 1_000
        token = Token(token_id, name, _hash(secret), parsed, now_ms, expires_ms)
        with self._locked() as file:
            if any(other.name == name and other.state(now_ms) == "active" for other in file.tokens):
                raise ConfigError(
                    f"an active token {name!r} already exists",
                    hint=f"revoke it first: headrace token revoke {name}",
                )
            self._write(_TokenFile(tokens=[*file.tokens, token]))
        return token, f"hr_{token_id}_{secret}"

    def revoke(self, name_or_id: str) -> Token:
        now_ms = self._clock.now_ms()
        with self._locked() as file:
            matching = [
                token
                for token in file.tokens
                if name_or_id in (token.name, token.id) and token.revoked_ms is None
            ]
            if not matching:
                raise ConfigError(
                    f"no token {name_or_id!r} to revoke", hint="headrace token list shows the tokens"
                )
            revoked = msgspec.structs.replace(matching[-1], revoked_ms=now_ms)
            tokens = [revoked if token.id == revoked.id else token for token in file.tokens]
            self._write(_TokenFile(tokens=tokens))
        return revoked

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_TokenFile]:
        make_private_dir(self.path.parent)
        with open(self.path.with_suffix(".lock"), "a", opener=private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield _read(self.path)

    def _write(self, tokens: _TokenFile) -> None:
        new_path = self.path.with_suffix(".new")
        with open(new_path, "wb", opener=private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(tokens)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new_path.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class TokenVerifier:
    """Checks the tokens of requests. Reloads the token file when it changes."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._checked_s = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}
        self.needed = False
        """True after the server has seen a token file, even if the file is deleted later."""
        self._reload()

    def caller(self, text: str) -> Caller | None:
        """Return the caller with this token, or None if the token is unknown, revoked or expired."""
        self._reload()
        match = _TEXT.fullmatch(text)
        token = self._tokens.get(match[1]) if match else None
        # Compare even if the id is unknown, so that timing does not reveal whether the id exists.
        is_equal = hmac.compare_digest(
            _hash(match[2] if match else ""), token.hash if token else _EMPTY_SECRET_HASH
        )
        if token is None or not is_equal or token.state(self._clock.now_ms()) != "active":
            return None
        return Caller(token.name, token.id, tuple(map(parse_scope, token.scopes)))

    def are_needed(self) -> bool:
        self._reload()
        return self.needed

    def _reload(self) -> None:
        now_s = self._clock.steady()
        if now_s - self._checked_s < _RELOAD_S:
            return
        try:
            info = self._path.stat()
        except FileNotFoundError:
            # Deleting the file revokes all tokens but does not grant access: ``needed`` does not change.
            self._tokens = {}
            self._stamp = None
            self._checked_s = now_s
            return
        stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
        if stamp != self._stamp:
            self._tokens = {token.id: token for token in _read(self._path).tokens}
            self._stamp, self.needed = stamp, True
        # Set this only after a successful read, so that every request fails while the file is unreadable.
        self._checked_s = now_s


def _read(path: Path) -> _TokenFile:
    try:
        tokens = msgspec.json.decode(path.read_bytes(), type=_TokenFile)
    except FileNotFoundError:
        return _TokenFile()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the tokens in {path}: {error}", hint="restore the file") from error
    if tokens.format != 1:
        raise ConfigError(
            f"unsupported token file format {tokens.format} in {path}",
            hint="this release supports only format 1",
        )
    return tokens


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token of a request: None without an Authorization header, empty if its scheme is not Bearer."""
    if "authorization" not in headers:
        return None
    kind, _, text = headers["authorization"].partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def authorize(tokens: TokenVerifier, token: str | None, view: str) -> Caller:
    """Return the caller. Raise if the caller is not allowed to read the view."""
    if token is None:
        if tokens.are_needed():
            raise NotLoggedIn(
                "a token is needed",
                hint='send it in the field "token" of the first message, or in the header Authorization: Bearer TOKEN',
            )
        return LOCAL_ADMIN
    caller = tokens.caller(token)
    if caller is None:
        raise NotLoggedIn(
            "the token is unknown, revoked or expired", hint="create a new token: headrace token create"
        )
    if not caller.may(READ_VIEW, view):
        # The message must not reveal whether the view exists.
        raise NotAllowed(
            f"the token does not allow {READ_VIEW}:{view[:100]}",
            hint="create a token with this scope: headrace token create NAME --scope SCOPE",
        )
    return caller
