"""Codecs without I/O."""
