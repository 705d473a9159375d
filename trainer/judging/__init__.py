"""From weights and a split to a verdict."""
