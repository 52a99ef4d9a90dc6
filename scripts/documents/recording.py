"""What `jaxspec generate --show` shows, as a picture: accepted draft tokens and the target's own in their colours.

    python scripts/documents/recording.py ["Why is the sky blue?"] [--max-new-tokens 96] [--out generate.svg]

Decodes greedily with the tree of 5 nodes that the pair's profile makes the fastest on two cores.
"""

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.text import Text

from jaxspec import decode, pairs
from jaxspec.cli.show.text import ACCEPTED, OWN
from jaxspec.cli.values import integer
from jaxspec.pairs.texts import TextStream
from jaxspec.tree import TokenTree

RESULTS = Path(__file__).parents[1] / "results"
TREE = TokenTree((-1, 0, 0, 1, 3))
WIDTH = 92


def recorded(prompt: str, text: Text, summary: str) -> str:
    """The SVG of a terminal with a command, its coloured text and a line about it."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH)
    console.print(Text(f'$ jaxspec generate "{prompt}" --show', style="bold"))
    console.print(Text.assemble(("accepted draft tokens", ACCEPTED), "  ", ("the target's own", OWN)))
    console.print(text)
    console.print(Text(summary, style="dim"))
    return console.export_svg(title="jaxspec", unique_id="jaxspec")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="Why is the sky blue?")
    parser.add_argument("--max-new-tokens", type=integer(1), default=96, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / "generate.svg", metavar="FILE.svg")
    args = parser.parse_args(argv)
    pair = pairs.load("smollm2-135m")
    decoder = decode.sequoia(pair.target, pair.draft, TREE)
    options = {"max_new_tokens": args.max_new_tokens, "stop_ids": pair.stop_ids}
    chunks = decode.stream(decoder, pair.params, [pair.encode(args.prompt)], key=jax.random.key(0), **options)
    detokeniser, text, counts = TextStream(pair.decode), Text(), []
    for chunk in chunks:
        tokens, accepted = chunk[0], chunk.num_accepted[0]
        text.append(detokeniser.feed(tokens[:accepted]), ACCEPTED)
        text.append(detokeniser.feed(tokens[accepted:]), OWN)
        counts.append(len(tokens))
    text.append(detokeniser.finish())
    summary = f"{sum(counts)} tokens, {sum(counts) / len(counts):.2f} tokens/round"
    args.out.write_text(recorded(args.prompt, text, summary), encoding="utf-8")


if __name__ == "__main__":
    main()
