"""Dead letters: what there is, what they say, and writing them back to where they came from, each once."""
