"""Views in Redis, or in Valkey: a hash per view, a field per row. The layout is told in ``keys``."""
