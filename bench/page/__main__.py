"""``python -m bench.page``."""

from bench.page.suite import main

main()
