"""Files of weights, read into parameters: Hugging Face folders (`folder`), GGUF files (`gguf_file`), from the hub.

Reads `families` and the transformer; `networks` imports it and exports its names, `mlp` reads safetensors with it.
"""

from jaxspec.networks.files.loading import listed_stop_ids, load, load_tokenizer, save

__all__ = ["listed_stop_ids", "load", "load_tokenizer", "save"]
