"""Faults of the broker on a simulated machine with one disk, one clock and one event loop. The seed drives them all."""
