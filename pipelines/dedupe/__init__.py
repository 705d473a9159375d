"""Finds duplicates and decides what becomes of them."""
