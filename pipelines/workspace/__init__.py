"""The output directory while a command works in it: its layout, its lock, its progress, its failures."""
