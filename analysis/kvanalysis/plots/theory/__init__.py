"""Theorems compared with measurements, for all papers."""
