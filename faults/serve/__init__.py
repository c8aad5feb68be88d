"""Faults of the server over HTTP, WebSocket and PostgreSQL's protocol."""
