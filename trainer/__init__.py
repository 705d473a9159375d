"""Trains on a dataset directory that `pipelines` wrote: dataset in, checkpoints, metrics and a served model out.

Only `shards` is shared with the build: nothing here imports Beam, tf.Transform or `pipelines`, so the training image
holds none of them. TensorFlow is imported inside commands, after the request has been checked.
"""
