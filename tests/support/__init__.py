"""Helpers and fixtures that several test suites share."""
