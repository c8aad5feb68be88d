"""Views as Delta tables, by deltalake. The layout and why it holds: ``store``."""
