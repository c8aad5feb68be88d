"""Views as full-text indexes, by tantivy. The layout and why it holds: ``store``."""
