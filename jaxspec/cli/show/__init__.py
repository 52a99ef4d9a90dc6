"""What the commands show: streamed text, tables and trees, figures; results on stdout, all else on stderr.

Only commands and scripts import it.
"""
