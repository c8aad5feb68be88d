"""Dead letters over HTTP: what there is, what they say, and writing them back."""
