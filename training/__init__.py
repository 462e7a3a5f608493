"""Training and evaluation of the memory: data, losses, feature cache, loop. Uses `models`, never `d2a_cli`."""
