"""The checksum is that of the package, whose start it leaves out."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from headrace.checksum import crc32c


@given(st.binary(max_size=300), st.integers(0, 300))
def test_it_is_the_package_s_own_also_piece_by_piece(data: bytes, cut: int) -> None:
    assert crc32c(data) == package.crc32c(data)
    assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == crc32c(data)


def test_a_known_sum() -> None:
    # The check value that the catalogue of CRCs gives for CRC-32C.
    assert crc32c(b"123456789") == 0xE3069283


def test_the_package_s_own_start_is_left_out() -> None:
    look = (
        "import sys, headrace.checksum; print('crc32c' in sys.modules, 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
