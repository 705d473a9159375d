"""The dataset directory that `pipelines` writes and `trainer` reads.

This package is the contract between the two: manifest, record framing, example coding, reading order and verification.
It imports neither Beam nor TensorFlow, so that a verifier is small and the two sides cannot drift apart.
"""

__version__ = "0.1.0"
