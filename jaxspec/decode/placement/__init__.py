"""Where a decoder runs: draft and target on devices of their own.

Reads the decoders and the loop; nothing in `decode` imports it.
"""
