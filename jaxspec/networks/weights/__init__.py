"""How weights lie in memory, and the products that read them.

Reads `base` alone; the layers import it.
"""
