"""The full-text search store. Each view is an index of tantivy, a search library."""
