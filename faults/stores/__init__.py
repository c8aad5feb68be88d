"""One adapter per kind of store, for the store contract and for faults: open, read, stop, wipe and restore."""
