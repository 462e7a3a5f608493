"""The command line `d2a`: parses, makes one call of `DocumentMemory` or `training.run`, and renders the result."""
