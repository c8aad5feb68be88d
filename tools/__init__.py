"""Scripts that set the clone up: run by ``make``, on a plain Python, before anything is installed.

What the product itself does to get Java and jars, they take from the product, which is not installed yet.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "src"))
