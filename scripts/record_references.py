"""Records what transformers+torch computes, for tests that run without torch.

python scripts/record_references.py                    the tiny families and ropes of tests/checkpoints.py
python scripts/record_references.py SmolLM2.gguf       SmolLM2-135M-Instruct too, and how far jaxspec is from it
"""

import argparse
import sys
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from checkpoints import DATA, FAMILIES, layers_of, prefill, random_checkpoint, torch_reference, torch_ropes  # noqa: E402

from jaxspec.networks import load, load_tokenizer  # noqa: E402

TEXT = """The lighthouse keeper kept two books. In the first, bound in green cloth, she wrote down the weather: wind
from the north-west at 27 knots, rain after midnight, visibility 1,400 metres. In the second she wrote what she thought
about while the weather happened, and this one nobody was allowed to read. "A lamp," it began, "is a promise made to
people whom you will never meet." Years later, when the lamp was run by a small grey computer, a student found both
books in a drawer. She copied the numbers into a table and computed a mean:

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

The result was unremarkable. Then she opened the second book and read until it was dark. What surprised her most was
not the loneliness but the jokes: on 3 March 1931, for instance, the keeper reported that the only ship in sight was
the one in the painting above her stove, and that it, too, appeared to be late. The student laughed and"""
NUM_TOKENS = 200


def main() -> None:
    """Writes `tests/data/*.npz` and prints the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", nargs="?", type=Path, help="SmolLM2-135M-Instruct as a GGUF file")
    gguf = parser.parse_args().gguf
    DATA.mkdir(exist_ok=True)
    for family, config in FAMILIES.items():
        reference = torch_reference(config, random_checkpoint(config))
        np.savez_compressed(DATA / f"transformer_{family}.npz", **cast(dict[str, Any], reference))
        ours = layers_of(family)
        print(family, *(f"{name} {np.abs(ours[name] - reference[name]).max():.1e}" for name in ours))
    np.savez_compressed(DATA / "ropes.npz", **cast(dict[str, Any], torch_ropes()))
    if gguf is not None:
        record_smollm2(gguf)


def record_smollm2(gguf: Path) -> None:
    """Writes a slice of the logits: 8 positions, 64 tokens of the vocabulary, and the five likeliest tokens."""
    import torch  # pyright: ignore[reportMissingImports] (the extra `torch`)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reference_ids = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)(TEXT)["input_ids"]
    assert load_tokenizer(gguf)(TEXT)["input_ids"] == reference_ids
    tokens = np.array(reference_ids[:NUM_TOKENS], np.int32)
    assert len(tokens) == NUM_TOKENS
    network = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = network(torch.tensor(tokens[None], dtype=torch.long)).logits[0].numpy()
    model, params = load(gguf)
    ours = np.asarray(prefill(model, params, jnp.asarray(tokens), slots=256)[0].logits)
    print(f"smollm2-135m logits {np.abs(ours - logits).max():.1e} of {np.abs(logits).max():.1f}")
    positions = np.linspace(0, NUM_TOKENS - 1, 8).astype(int)
    vocabulary = np.sort(np.random.default_rng(0).choice(logits.shape[1], 64, replace=False))
    np.savez_compressed(
        DATA / "smollm2_135m.npz",
        text=np.array(TEXT),
        tokens=tokens,
        positions=positions,
        vocabulary=vocabulary,
        logits=logits[np.ix_(positions, vocabulary)],
        top=np.argsort(-logits[positions], axis=-1)[:, :5],
    )


if __name__ == "__main__":
    main()
