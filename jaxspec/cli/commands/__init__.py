"""One file a command: a function that registers it, and one that runs it.

Only `cli.entry` imports them; what needs JAX is imported when a command runs, so that `--help` is quick.
"""
