"""Verifies views over HTTP: compares their rows with the rows derived from the log."""
