"""Dead letters: read them, and write each letter back to its original topic once."""
