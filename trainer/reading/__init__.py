"""From shards on disk to batches: what is read when, decoded, changed at random and normalised."""
