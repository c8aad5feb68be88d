"""``headrace.checksum`` uses the extension module of ``crc32c`` without importing the package."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from headrace.checksum import crc32c


@given(st.binary(max_size=300), st.integers(0, 300))
def test_the_checksum_equals_that_of_the_package_also_in_pieces(data: bytes, cut: int) -> None:
    assert crc32c(data) == package.crc32c(data)
    assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == crc32c(data)


def test_the_checksum_has_the_published_check_value() -> None:
    # The check value for CRC-32C in the catalogue of CRCs.
    assert crc32c(b"123456789") == 0xE3069283


def test_the_package_itself_is_not_imported() -> None:
    script = (
        "import sys, headrace.checksum; print('crc32c' in sys.modules, 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
