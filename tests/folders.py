"""Folders of random models with a tokenizer of words."""

import jax
from real import real_pair  # noqa: F401
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxspec import networks
from jaxspec.networks import Transformer, TransformerConfig

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w3{% endif %}"
)


def make_tokenizer(num_tokens: int, template: str | None = None, swapped: bool = False) -> PreTrainedTokenizerFast:
    """Words `<eos>`, `w1`, `w2`, …, of which `user` has the id 4."""
    words = ["<eos>", *(f"w{index}" for index in range(1, num_tokens))]
    words[4] = "user"
    if swapped:
        words[7], words[9] = words[9], words[7]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=template)


def make_folder(folder, rows: int, tokenizer=None, num_layers: int = 2, seed: int = 0):
    """A model's folder with random weights and a tokenizer; returns model and parameters."""
    config = TransformerConfig(rows, 16, 32, num_layers, 2, 1, 8, tie_word_embeddings=False, initializer_range=0.5)
    model = Transformer(config)
    params = model.init(jax.random.key(seed))
    networks.save(folder, model, params)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return model, params
