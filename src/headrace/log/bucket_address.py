"""Where a bucket is. Who may use it is no part of it: credentials come from the environment or the usual files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.errors import ConfigError

__all__ = ["BucketAddress", "parse_bucket"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()=-]+(/[A-Za-z0-9!_.*'()=-]+)*")
_PREFIX_CHARS_MAX = 512
_REGION = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class BucketAddress:
    bucket: str
    prefix: str = ""
    scheme: str = "https"
    endpoint: str = ""
    """Host and port of a store other than Amazon's."""
    region: str = ""

    @property
    def root(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket


def parse_bucket(address: str, endpoint: str, region: str) -> BucketAddress:
    """``s3://BUCKET/PREFIX``, with ``http://HOST:PORT`` or ``https://HOST:PORT`` and a region, each empty for none.

    No value is repeated in an error, because someone may have put a password into it.
    """
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            "headrace.archive.dir begins with s3:// and names no bucket of 3 to 63 letters, digits, dots and dashes",
            hint="write s3://BUCKET or s3://BUCKET/PREFIX; credentials come from the environment"
            " (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or from ~/.aws",
        )
    if prefix and (
        len(prefix) > _PREFIX_CHARS_MAX
        or not _PREFIX.fullmatch(prefix)
        or any(part in (".", "..") for part in prefix.split("/"))
    ):
        raise ConfigError(
            f"the prefix in headrace.archive.dir is not made of names with slashes between, or has more than"
            f" {_PREFIX_CHARS_MAX} characters",
            hint="use letters, digits, and - _ . ! * ' ( ) = in it; the endpoint goes to headrace.archive.s3.endpoint",
        )
    if region and not _REGION.fullmatch(region):
        raise ConfigError(
            "headrace.archive.s3.region is no name of a region", hint="write it as eu-central-1"
        )
    scheme, host = _parse_endpoint(endpoint) if endpoint else ("https", "")
    return BucketAddress(bucket, prefix, scheme, host, region)


def _parse_endpoint(endpoint: str) -> tuple[str, str]:
    refusal = ConfigError(
        "headrace.archive.s3.endpoint is not an address of a server",
        hint="write http://HOST:PORT or https://HOST:PORT, without a path, a user or a password",
    )
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise refusal from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise refusal
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme, host if port is None else f"{host}:{port}"
