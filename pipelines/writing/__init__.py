"""Writes shards, and beside each what a later run must know of it."""
