"""Measurements; run with `./dev bench`."""
