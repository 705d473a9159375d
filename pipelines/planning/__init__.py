"""Which split and which shard every example goes to, decided from metadata alone."""
