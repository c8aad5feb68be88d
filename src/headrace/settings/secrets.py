"""Values that must not be shown: by the name that they have, or because an address holds a password."""

from __future__ import annotations

import re

__all__ = ["MASK", "masked"]

MASK = "****"
# As in librdkafka's, Java's and Spark's own names for them: sasl.password, sasl.jaas.config, ssl.key.pem,
# sasl.oauthbearer.client.secret, spark.hadoop.fs.s3a.secret.key, spark.authenticate.secret.
_SECRET = re.compile(
    r"passw|secret|token|jaas|credential|key\.pem|private|passphrase|access\.key|backup_key$", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]+(?=@)")


def masked(key: str, value: object) -> object:
    """The value, or a mask if nobody but its user may see it."""
    if not isinstance(value, str) or not value:
        return value
    if _SECRET.search(key):
        return MASK
    return _IN_ADDRESS.sub(MASK, value)
