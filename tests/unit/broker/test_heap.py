"""Memory that is let go of is kept for the next buffer."""

from __future__ import annotations

import subprocess
import sys

# A buffer that is handed back costs a fault for each of its pages when the next one is filled.
FAULTS = """
import resource
from headrace.broker.heap import keep_freed_memory
assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(8 << 20)
before = faults()
for _ in range(10):
    bytearray(8 << 20)
print(faults() - before)
"""


def test_a_large_buffer_is_made_of_the_memory_of_the_last_one() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < (8 << 20) // 4096
