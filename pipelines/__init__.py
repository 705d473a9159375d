"""The Apache Beam job that turns raw images and labels into a dataset directory (see `shards`)."""
