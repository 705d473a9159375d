"""One input becomes one record: formats, headers, pixels, arrays, boxes; neither Beam nor TensorFlow."""
