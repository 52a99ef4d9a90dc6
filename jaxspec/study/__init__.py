"""Methods compared: timed in turns, token for token, and on the time line of one device or two.

Reads `measure` and `decode`; scripts and the command line import it.
"""
