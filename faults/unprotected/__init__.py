"""The product with one protection removed. The oracle must detect each removal."""
