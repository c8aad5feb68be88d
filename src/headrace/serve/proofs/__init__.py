"""Verifications that somebody asks for over HTTP."""
