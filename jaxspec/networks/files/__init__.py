"""Files of weights: Hugging Face folders and GGUF, read into parameters.

Reads `families` and the transformer; `networks` exports `load`, `load_tokenizer` and `save`.
"""
