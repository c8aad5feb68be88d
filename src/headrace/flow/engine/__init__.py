"""Engines that run a compiled flow: in micro-batches, in micro-batches with tables, or in real time."""
