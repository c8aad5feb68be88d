"""Values that must not be shown: which they are by the name that they have, or because an address holds a password; and
how one is read from a setting or a file.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["MASK", "masked", "read_secret"]

MASK = "****"
# As in librdkafka's, Java's and Spark's own names for them: sasl.password, sasl.jaas.config, ssl.key.pem,
# sasl.oauthbearer.client.secret, spark.hadoop.fs.s3a.secret.key, spark.authenticate.secret.
_SECRET = re.compile(
    r"passw|secret|token|jaas|credential|key\.pem|private|passphrase|access\.key|backup_key$", re.IGNORECASE
)
_BYTES_MAX = 4_096
_CREATE = "create one: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]+(?=@)")


def masked(key: str, value: object) -> object:
    """The value, or a mask if nobody but its user may see it."""
    if not isinstance(value, str) or not value:
        return value
    if _SECRET.search(key):
        return MASK
    return _IN_ADDRESS.sub(MASK, value)


def read_secret(setting: str, text: str | None, file: Path | None, *, bytes_min: int) -> bytes | None:
    """From the setting itself, or from the file that ``<setting>_file`` names; None where neither is set."""
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
            f"{setting}, from {origin}, has {len(secret)} bytes ({bytes_min} to {_BYTES_MAX})", hint=_CREATE
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
