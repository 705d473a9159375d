"""Makes the damaged files of a dataset again."""
