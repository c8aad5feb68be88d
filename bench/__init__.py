"""Benchmarks against the best peers. The results are JSON files in ``bench/results/``."""
