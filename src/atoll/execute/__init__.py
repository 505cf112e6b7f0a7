"""Stage 5: commands inside a live sandbox, over one channel."""
