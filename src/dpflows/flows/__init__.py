"""Exact-likelihood maps of one row. Knows no data and no privacy."""
