"""Faults of the broker and its log: real processes, files and sockets."""
