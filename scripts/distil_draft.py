"""Distils a small draft from a target: its own completions, its distributions on them, training, evaluation, export.

Each command writes files that the next one reads:

    generate   completions by the target, an .npz
    label      the target's most probable tokens after each token of completions, a folder
    train      a run: a folder with a checkpoint, that goes on where it was stopped
    evaluate   a run's acceptance by child rank, and at temperatures, on held-out prompts
    export     a run as a Hugging Face folder, with the ids that a trimmed vocabulary keeps

A completions file holds `tokens` [total], `offsets` [n + 1], `prompt_lengths` [n] and `temperatures` [n].
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distil.data import console, generate, label, read_data
from distil.network import KEPT_IDS, trained
from distil.run import make_measure, train
from rich.table import Table

from jaxspec import networks


def evaluate(options: argparse.Namespace) -> None:
    """Prints a run's held-out acceptance: a table, and JSON on stdout."""
    data = read_data(options.data, options.labels, options.held_out)
    draft, params = trained(Path(options.run_folder))
    found = {length: make_measure(draft, data, length)(params) for length in options.lengths}
    table = Table("context", "rank 1", "2", "3", "4", "overlap T=0.6", "T=1")
    for length, measured in found.items():
        table.add_row(str(length), *(f"{value:.3f}" for value in (*measured["ranks"], *measured["overlap"])))
    console.print(table)
    print(json.dumps(found))


def export(options: argparse.Namespace) -> None:
    """Writes a run as a Hugging Face folder, and beside it the ids that a trimmed vocabulary keeps."""
    draft, params = trained(Path(options.run_folder))
    out = Path(options.out)
    networks.save(out, dataclasses.replace(draft.model, num_features=0), draft.whole(params), options.dtype)
    np.save(out / KEPT_IDS, draft.kept_ids)
    special = {"bos_token_id": options.bos_id, "eos_token_id": options.stop_ids, "pad_token_id": options.pad_id}
    for file, config in (
        ("config.json", json.loads((out / "config.json").read_text())),
        ("generation_config.json", {}),
    ):
        (out / file).write_text(json.dumps({**config, **special}, indent=2) + "\n")
    size = sum(file.stat().st_size for file in out.iterdir())
    console.print(f"{out}: {size / 1e6:.1f} MB")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], None], *groups: str) -> Callable[..., None]:
        doc = run.__doc__ or ""
        sub = commands.add_parser(run.__name__, help=doc.split(". ")[0].rstrip("."), description=doc)
        sub.set_defaults(run=run)

        def add(name: str, default: Any, text: str, **more: Any) -> None:
            kind = type(default[0] if default else 0.0) if isinstance(default, list) else type(default)
            kind = more.pop("type", kind)
            if default is None:
                sub.add_argument(name, required=True, help=text, **more)
            else:
                sub.add_argument(name, type=kind, default=default, help=f"{text} (default: %(default)s)", **more)

        if "target" in groups:
            add("--target", None, "the target: a Hugging Face folder, hub id or GGUF file")
        if "data" in groups:
            add("--data", None, "completions files", nargs="+")
            add("--labels", None, "folders of labels, one a file, in order", nargs="+")
            add("--held-out", 0.03, "share of the prompts that is kept from training")
        if "run" in groups:
            add("--run", None, "the run's folder", dest="run_folder")
        if "stops" in groups:
            add("--stop-ids", [2], "tokens that end a text", nargs="+")
        return add

    add = command(generate, "target", "stops")
    add("--data", None, "completions file whose prompts are used")
    add("--out", None, "completions file to write")
    add("--rows", 1000, "prompts to complete, drawn without replacement")
    add("--temperature", 0.0, "0 is greedy")
    add("--max-new-tokens", 192, "longest completion")
    add("--batch", 16, "prompts decoded together")
    add("--seed", 0, "of prompts and tokens")
    add = command(label, "target")
    add("--data", None, "completions file")
    add("--out", None, "folder of labels to write")
    add("--count", 32, "tokens stored at each position")
    add("--batch-tokens", 1024, "tokens of one forward")
    add = command(train, "target", "data", "stops")
    add("--out", None, "the run's folder")
    about = "numbers of the target's layers that the draft begins with, in place of a new network"
    add("--prune", [], about, nargs="*", type=int)
    add("--width", 256, "D")
    add("--layers", 2, "L")
    add("--heads", 4, "query heads")
    add("--kv-heads", 2, "key and value heads")
    add("--head-dim", 64, "features of a head")
    add("--intermediate", 768, "width inside a feed-forward layer")
    add("--rope-theta", 10000.0, "base of the rotary frequencies")
    add("--kept", 8192, "tokens of the trimmed vocabulary")
    add("--steps", 2000, "in all; may be changed on resuming, before the descent of the learning rate")
    add("--batch", 8, "rows of a step")
    add("--length", 512, "tokens of a row, which whole sequences are packed into")
    add("--positions", 0.7, "share of the positions that is trained on, those of most weight first")
    add("--candidates", 2560, "kept tokens that a step's softmax runs over; see training.candidates")
    add("--labels-used", 16, "of those stored at each position")
    add("--hard", 0.3, "share of the loss that looks at the target's most probable token alone")
    add("--prompt-weight", 0.3, "of positions inside prompts, where completions have 1")
    add("--copying", [], "shares of the copying draft that this will be (fit_copying.py)", nargs="*")
    add("--optimiser", "adamw", "for the layers' matrices", choices=["adamw", "muon"])
    add("--learning-rate", 2e-3, "peak of AdamW's")
    add("--muon-rate", 0.02, "peak of Muon's")
    add("--weight-decay", 0.05, "AdamW's, on the layers' matrices")
    add("--warm-up", 50, "steps")
    add("--decay", 0.4, "share of the steps in which the learning rate falls to 0")
    add("--every", 100, "steps from checkpoint to checkpoint")
    add("--evaluation-length", 512, "tokens that held-out completions are packed into")
    add("--seed", 0, "of weights and order")
    add = command(evaluate, "run", "data")
    add("--lengths", [512, 1024], "tokens that held-out completions are packed into", nargs="+")
    add = command(export, "run", "stops")
    add("--out", None, "the Hugging Face folder")
    add("--dtype", "bfloat16", "of the weights", choices=["bfloat16", "float16", "float32"])
    add("--bos-id", 1, "token that begins a text")
    add("--pad-id", 2, "token that pads")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    options.run(options)
