"""Compares the declared schemas of an app with the recorded schemas and with the records of the log."""
