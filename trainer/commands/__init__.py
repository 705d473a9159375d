"""The commands of `python -m trainer`, one module each: `add_parser(commands)` declares it, `run(arguments)` does it.

Nothing here imports TensorFlow before the request has been checked.
"""
