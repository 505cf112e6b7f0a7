"""Nouns and errors that everything shares: frozen, typed, no I/O."""
