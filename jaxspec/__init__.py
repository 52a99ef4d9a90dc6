"""Lossless speculative decoding as compiled, pure JAX functions."""
