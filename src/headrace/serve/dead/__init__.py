"""Dead letters over HTTP: list their topics, read them, and write them back."""
