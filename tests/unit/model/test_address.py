"""Addresses of stores: environment variables are read on use, and secrets are never displayed."""

from __future__ import annotations

import pytest

from headrace.model.store import MissingAddress, redact_address, resolve_address

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("postgresql://ann:s3cr3t@host:5432/shop", "postgresql://host:5432/shop"),
        ("postgresql://ann:p@s3cr3t/x@host/shop", "postgresql://host/shop"),
        ("postgresql://host/shop?user=ann&password=s3cr3t&sslmode=require", "postgresql://host/shop?user=...&password=...&sslmode=require"),
        ("host=db password=s3cr3t dbname=shop", "host=db password=... dbname=shop"),
        (r"host=db password = 'a s3cr3t\' s3cr3t' dbname=shop", "host=db password = ... dbname=shop"),
        ("redis://:s3cr3t@cache:6379/0", "redis://cache:6379/0"),
        ("$DATABASE_URL", "$DATABASE_URL"),
    ],
)  # fmt: skip
def test_an_address_is_shown_without_user_and_password(address: str, seen: str) -> None:
    assert redact_address(address) == seen
    assert SECRET not in redact_address(address)


def test_an_environment_variable_is_read_when_the_address_is_resolved() -> None:
    assert resolve_address("$SHOP_DB", {"SHOP_DB": "postgresql://host/shop"}) == "postgresql://host/shop"
    assert resolve_address("postgresql://host/$x", {}) == "postgresql://host/$x"
    with pytest.raises(MissingAddress, match="SHOP_DB is not set"):
        resolve_address("$SHOP_DB", {"SHOP_DB": ""})
