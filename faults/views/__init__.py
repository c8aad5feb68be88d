"""Faults of followers and of the stores that they write."""
