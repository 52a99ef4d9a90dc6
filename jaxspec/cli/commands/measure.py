"""The command `jaxspec measure`: a pair becomes a profile."""

import argparse
import dataclasses
from typing import Any

from jaxspec.catalogue import prompts
from jaxspec.cli import options, values
from jaxspec.cli.show import tables, terminal


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "measure",
        "Measure a pair's acceptance by child rank and depth, its draft's confidence and step times into a profile.",
        "--json prints the profile as it is written.\n\n"
        "example: jaxspec measure --prompts gsm8k.jsonl --num-prompts 50 --out profile.json",
    )
    options.add_prompts(parser, 200)
    options.add_prompt_tokens(parser)
    count = values.integer(1)
    parser.add_argument("--width", type=count, default=8, metavar="N", help="children of a node (default %(default)s)")
    parser.add_argument("--depth", type=count, default=5, metavar="N", help="depths measured (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="FILE", help="where the profile is written, as JSON")
    options.add_models(parser)
    options.add_sampling(parser, 128)


def run(args: argparse.Namespace) -> int:
    options.refuse_filters(args)
    out = options.writable("--out", args.out)
    chosen = options.read_prompts(args)
    pair = options.load_pair(args)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]

    import jax

    from jaxspec import measure

    with terminal.progress() as progress:
        progress("acceptance", 0, len(encoded))
        profile = measure.profile(
            pair.target,
            pair.draft,
            pair.params,
            encoded,
            key=jax.random.key(args.seed),
            width=args.width,
            depth=args.depth,
            temperature=args.temperature,
            draft_temperature=args.draft_temperature,
            max_new_tokens=args.max_new_tokens,
            stop_ids=pair.stop_ids,
            names=(pair.sources["target"], pair.sources["draft"]),
            progress=progress,
        )
    asked = {name: getattr(args, name) for name in ("prompts", "prompt_tokens", "seed", "dtype")} | {"pair": pair.name}
    profile = dataclasses.replace(profile, protocol={**profile.protocol, **asked})
    profile.save(out)
    if args.json:
        print(out.read_text(encoding="utf-8"), end="")
    else:
        tables.print_profile(profile, args.out)
    return 0
