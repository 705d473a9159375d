"""Processes and people: workers, their cluster and strategy, and what is told about a run."""
