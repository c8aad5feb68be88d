"""``python -m bench.serve``."""

from bench.serve.suite import main

main()
