"""The project's own scripts: they set a clone up. Nothing here ships with the package.

``tools.setup`` runs before there is a virtual environment, so this package needs nothing but Python's standard library.
"""
