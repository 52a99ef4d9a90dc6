"""Decoding in branches: SpecBranch and PEARL, which draft on while the target verifies, and the cuts (H-RAD).

Reads `decode`'s state and proposals; `decode` exports its constructors.
"""
