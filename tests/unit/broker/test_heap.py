"""The process retains freed memory for the next buffer."""

from __future__ import annotations

import subprocess
import sys

# If freed memory goes back to the kernel, the next buffer costs a page fault for each of its pages.
FAULTS = """
import resource
from headrace.broker.main import keep_freed_memory
assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(8 << 20)
before = faults()
for _ in range(10):
    bytearray(8 << 20)
print(faults() - before)
"""


def test_a_large_buffer_reuses_the_memory_of_the_last_one() -> None:
    process = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(process.stdout) < (8 << 20) // 4096
