"""What tf.Transform computes from a dataset, in a process of its own; nothing else needs TensorFlow."""
