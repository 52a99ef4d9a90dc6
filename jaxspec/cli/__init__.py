"""The command line: `commands` has a file a command, `show` what they print, `options` what their options mean.

Reads everything; nothing imports it.
"""

from jaxspec.cli.entry import main

__all__ = ["main"]
