"""The end of a build: accounts, checks, descriptions, and the manifest last of all."""
