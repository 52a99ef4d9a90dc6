"""The command `jaxspec check`: greedy texts of methods against those of plain decoding, token for token."""

import argparse
from typing import Any

from jaxspec.catalogue.choosing import choose
from jaxspec.cli import options
from jaxspec.cli.show import tables, terminal

FORKED = 1
"""Exit status of a check that found any."""


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "check",
        "Compare greedy texts with those of plain decoding, token for token.",
        "Exit status: 0 without forks, 1 with any. In float32 there must be none; in bfloat16 a fork is legitimate\n"
        "where its gap, the distance of both tokens' logits, is as small as bfloat16's rounding.\n"
        "With several methods `forks` and `first_forks` are of all of them, `by_method` has each one's own.\n\n"
        "example: jaxspec check --prompts humaneval.jsonl --num-prompts 20 --methods speculative,sequoia",
    )
    options.add_prompts(parser, None)
    options.add_models(parser)
    options.add_sampling(parser, 64)
    options.add_text_options(parser)
    options.add_methods(parser)


def run(args: argparse.Namespace) -> int:
    if args.temperature or args.draft_temperature:
        raise ValueError("check compares greedy texts, so that both temperatures are 0: leave them out")
    asked = options.asked(args, args.methods)
    chosen = options.read_prompts(args)
    pair = options.load_pair(args)
    encoded = [pair.encode(prompt.content) for prompt in chosen]
    choices = {method: choose(method, asked, pair) for method in args.methods}

    from jaxspec import decode
    from jaxspec.study import parity

    wanted = {
        "max_new_tokens": args.max_new_tokens,
        "min_new_tokens": args.min_new_tokens,
        "stop_ids": pair.stop_ids,
        "sampling": options.sampling(args, pair),
    }
    decoders = {"plain decoding": decode.autoregressive(pair.target)}
    decoders |= {method: choice.decoder(pair) for method, choice in choices.items()}
    texts = {}
    with terminal.progress() as progress:
        for method, decoder in decoders.items():
            progress(method, 0, len(encoded))
            texts[method] = parity.texts(
                decoder,
                pair.params_at(0.0),
                encoded,
                **wanted,
                progress=lambda _, done, total, method=method: progress(method, done, total),
            )
    plain = texts.pop("plain decoding")
    results = {
        method: parity.compare(pair.target, pair.params["target"], encoded, plain, own, **wanted)
        for method, own in texts.items()
    }
    names = [prompt.id for prompt in chosen]
    if args.json:
        config = options.common_config(args, pair) | {
            "methods": {method: one.config() for method, one in choices.items()}
        }
        terminal.print_json(parity.entries(results, names) | {"config": config})
    else:
        tables.print_parity(results, names, lambda tokens: pair.tokenizer.decode(tokens))
    return FORKED if any(result.forks for result in results.values()) else 0
