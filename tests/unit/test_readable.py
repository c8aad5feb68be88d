"""``readable`` accepts descriptors of any number."""

from __future__ import annotations

import os
import resource

from headrace.files import readable


def test_readable_accepts_a_descriptor_above_the_limit_of_select() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2_000), limits[1]))
    reading, writing = os.pipe()
    high = os.dup2(reading, 1_999)
    try:
        assert not readable(high, 0)
        os.write(writing, b"x")
        assert readable(high, 0)
        os.read(high, 1)
        assert not readable(high, 0)
        os.close(writing)
        writing = -1
        # The end of the stream makes the descriptor readable too.
        assert readable(high, 0)
    finally:
        for descriptor in (reading, high, writing):
            if descriptor >= 0:
                os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
