"""Stage 2: the one host directory a sandbox sees."""
