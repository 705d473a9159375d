"""Processes of their own in which inputs are decoded, so that no picture can harm a worker."""
