"""Measures what the README claims: `python -m benchmarks --help` lists the benchmarks."""
