"""The Redis store. Each view is a hash."""
