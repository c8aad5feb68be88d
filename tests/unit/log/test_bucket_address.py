from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.log.archive_store import BucketAddress, parse_bucket


def test_an_address_has_a_bucket_and_may_have_a_prefix_an_endpoint_and_a_region() -> None:
    assert parse_bucket("s3://archive", "", "") == BucketAddress("archive")
    assert parse_bucket("s3://archive/a/b/", "", "eu-central-1") == BucketAddress(
        "archive", "a/b", region="eu-central-1"
    )
    assert parse_bucket("s3://archive", "http://127.0.0.1:9000", "") == BucketAddress(
        "archive", "", "http", "127.0.0.1:9000"
    )
    assert parse_bucket("s3://archive", "https://[::1]:9000/", "").endpoint == "[::1]:9000"
    assert parse_bucket("s3://archive", "https://minio.example", "").endpoint == "minio.example"


SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    ("address", "endpoint", "region", "about"),
    [
        ("s3://", "", "", "invalid bucket"),
        ("s3:///prefix", "", "", "invalid bucket"),
        ("s3://ab", "", "", "invalid bucket"),
        (f"s3://key:{SECRET}@archive/prefix", "", "", "invalid bucket"),
        (f"s3://archive?secret={SECRET}", "", "", "invalid bucket"),
        ("s3://archive/a//b", "", "", "prefix"),
        ("s3://archive/../b", "", "", "prefix"),
        ("s3://archive/a?endpoint=x", "", "", "prefix"),
        ("s3://archive/" + "a" * 513, "", "", "prefix"),
        ("s3://archive", "127.0.0.1:9000", "", "endpoint"),
        ("s3://archive", "ftp://127.0.0.1", "", "endpoint"),
        ("s3://archive", "http://127.0.0.1:port", "", "endpoint"),
        ("s3://archive", "http://127.0.0.1/path", "", "endpoint"),
        ("s3://archive", f"http://key:{SECRET}@127.0.0.1", "", "endpoint"),
        ("s3://archive", "", "Mars!", "region"),
    ],
)
def test_an_invalid_address_is_refused_with_a_hint_and_without_secrets(
    address: str, endpoint: str, region: str, about: str
) -> None:
    with pytest.raises(ConfigError, match=about) as raised:
        parse_bucket(address, endpoint, region)
    assert raised.value.hint
    assert SECRET not in str(raised.value)
