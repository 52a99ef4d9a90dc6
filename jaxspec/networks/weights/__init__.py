"""How weights lie in memory (`memory`), and the products that read them (`products`).

Reads `base` alone; the layers import it.
"""

from jaxspec.networks.weights.memory import distinct, packed

__all__ = ["distinct", "packed"]
