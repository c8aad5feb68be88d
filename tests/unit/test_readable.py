"""A descriptor is waited for whatever its number is."""

from __future__ import annotations

import os
import resource

from headrace.readable import readable


def test_a_descriptor_above_those_that_select_takes_is_waited_for() -> None:
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
        # An end is something to read too.
        assert readable(high, 0)
    finally:
        for one in (reading, high, writing):
            if one >= 0:
                os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
