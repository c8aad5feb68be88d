"""Parts of ``bench.serve``, and the programs that they start."""
