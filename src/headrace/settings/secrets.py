"""Secrets in settings: mask them in output, and read them from a setting or a file."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["MASK", "masked", "read_secret"]

MASK = "****"
# The names that librdkafka, Java and Spark use: sasl.password, sasl.jaas.config, ssl.key.pem,
# sasl.oauthbearer.client.secret, spark.hadoop.fs.s3a.secret.key, spark.authenticate.secret.
_SECRET = re.compile(
    r"passw|secret|token|jaas|credential|key\.pem|private|passphrase|access\.key|backup_key$", re.IGNORECASE
)
_BYTES_MAX = 4_096
_CREATE = "create a secret: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]+(?=@)")


def masked(key: str, value: object) -> object:
    """Return the value, or a mask if the key is that of a secret. Also mask a password inside an address."""
    if not isinstance(value, str) or not value:
        return value
    if _SECRET.search(key):
        return MASK
    return _IN_ADDRESS.sub(MASK, value)


def read_secret(setting: str, text: str | None, file: Path | None, *, bytes_min: int) -> bytes | None:
    """Return the secret from the setting itself or from the file of ``<setting>_file``; None if neither is set."""
    if text is not None and file is not None:
        raise ConfigError(f"{setting} and {setting}_file are both set", hint="set one of them")
    if text is not None:
        secret, origin = text.strip().encode(), setting
    elif file is not None:
        secret, origin = _read_file(setting, file), str(file)
    else:
        return None
    if not bytes_min <= len(secret) <= _BYTES_MAX:
        raise ConfigError(
            f"{setting}, from {origin}, has {len(secret)} bytes, but must have {bytes_min} to {_BYTES_MAX}",
            hint=_CREATE,
        )
    return secret


def _read_file(setting: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX + 3).strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read {setting} from {path}: {error.strerror or error}", hint=_CREATE
        ) from error
