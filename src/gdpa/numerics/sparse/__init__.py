"""Sparse matrices, their factorizations and the quadratic models built on them."""
