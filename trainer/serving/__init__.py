"""From weights to a model that others can ask, and asking it."""
