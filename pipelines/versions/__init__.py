"""What an earlier version of a dataset was made from: what has changed since, and what is carried over."""
