"""Decoding with a drafted token tree: the decoder, and the drafters that are handed in to it.

Drafters: static trees and chains, drafted level by level; AdaEDL's chain, which stops by itself. `drafter` says what
another one needs. Reads `decode`'s state, proposals and walk; `decode` exports its constructors.
"""
