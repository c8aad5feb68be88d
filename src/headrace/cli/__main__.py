"""``python -m headrace.cli``: the command without its script."""

from __future__ import annotations

import sys

from headrace.cli import main

sys.exit(main())
