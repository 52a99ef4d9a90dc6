"""What tests of the command line share: a tokenizer of bytes, a tiny model, profiles, and how a command is run."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxspec import networks
from jaxspec.networks import Transformer, TransformerConfig
from jaxspec.profiles import Profile

Run = Callable[..., tuple[int, str, str]]
"""Runs a command; gives its status, stdout and stderr."""

MESSAGES = "{% for message in messages %}<{{ message['role'][0] }}>{{ message['content'] }}{% endfor %}"

TEMPLATE = MESSAGES + "{% if add_generation_prompt %}>{% endif %}"
LIMIT = 12
"""New tokens of most runs."""


PROFILE = Profile(
    acceptance=(0.6, 0.2, 0.1), verify_ms={1: 10.0, 8: 11.0, 16: 13.0}, draft_ms={1: 1.0, 8: 1.2}, temperature=0.0
)

PLAIN_PROFILE = Profile(acceptance=(0.1, 0.0), verify_ms={1: 10.0, 8: 40.0}, draft_ms={1: 8.0})

DEFAULT_TREE = [-1, 0, 0, 1, 1, 2, 3, 6]


def byte_tokenizer(swapped: bool = False) -> PreTrainedTokenizerFast:
    """A token a byte, so that most characters outside ASCII are several; and an end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        alphabet[3], alphabet[5] = alphabet[5], alphabet[3]
    backend = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=TEMPLATE)


def save_model(folder: Path, seed: int, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes a random model of two layers and its tokenizer."""
    model = Transformer(TransformerConfig(257, 16, 32, 2, 2, 1, 8, max_length=256, initializer_range=0.5))
    networks.save(folder, model, model.init(jax.random.key(seed)))
    tokenizer.save_pretrained(folder)


def generated(run: Run, *argv: object) -> dict:
    """What `jaxspec generate hello --json` prints."""
    status, out, _ = run("generate", "hello", "--json", *argv)
    assert status == 0
    return json.loads(out)
