"""Decoding with a drafted token tree: static trees and chains, drafted level by level, and AdaEDL's adaptive chain.

Reads `decode`'s state and proposals; `decode` exports its constructors.
"""
