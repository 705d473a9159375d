"""From batches to weights: the network, what it learns, the steps, and what a run remembers."""
