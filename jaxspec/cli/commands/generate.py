"""The command `jaxspec generate`: a prompt, decoded while it is written."""

import argparse
import sys
import time
from typing import Any

from jaxspec.catalogue import registry
from jaxspec.catalogue.choosing import choose, implied
from jaxspec.cli import options
from jaxspec.cli.show import terminal, text


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "generate",
        "Decode a prompt; the text is written while it is decoded.",
        "With --json, stats.seconds has the compiling in it.\n\n"
        'example: jaxspec generate "Why is the sky blue?" --tree k-ary:2x3 --max-new-tokens 64 --show',
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from stdin, less one final newline")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without the chat template")
    parser.add_argument(
        "--show", action="store_true", help="in a terminal, colour accepted draft tokens and the target's own"
    )
    options.add_models(parser)
    options.add_sampling(parser, 128)
    group = parser.add_argument_group("method")
    group.add_argument(
        "--method",
        choices=registry.NAMES,
        help=f"default: {_implied()}; otherwise auto",
    )
    options.add_shape(group)


def run(args: argparse.Namespace) -> int:
    if args.show and args.json:
        raise ValueError("--show colours the streamed text, but with --json none is: leave one of them out")
    given = [option for option in registry.OPTIONS if getattr(args, option) is not None]
    method = args.method or implied(given)
    asked = options.asked(args, (method,))
    prompt = sys.stdin.read().removesuffix("\n") if args.prompt == "-" else args.prompt
    pair = options.load_pair(args)
    prompt_ids = pair.encode(prompt, raw=args.raw)
    choice = choose(method, asked, pair)

    import jax

    from jaxspec import decode

    request: dict[str, Any] = {
        "key": jax.random.key(args.seed),
        "max_new_tokens": args.max_new_tokens,
        "sampling": decode.Sampling(args.temperature, args.top_k, args.top_p, args.min_p),
        "stop_ids": pair.stop_ids,
        "draft_temperature": args.draft_temperature,
    }
    decoder, params = choice.decoder(pair), pair.params_at(args.temperature)
    if not args.json:
        text.stream(decode.stream(decoder, params, [prompt_ids], **request), pair.decode, args.show)
        return 0
    start = time.perf_counter()
    generation = decode.generate(decoder, params, [prompt_ids], **request, logprobs=False)
    seconds = time.perf_counter() - start
    token_ids = generation.tokens[0, : generation.lengths[0]].tolist()
    terminal.print_json(
        {
            "text": pair.decode(token_ids),
            "token_ids": token_ids,
            "finish_reason": generation.finish_reason[0],
            "config": options.common_config(args, pair) | choice.config() | {"raw": args.raw},
            "stats": generation.stats.summary() | {"seconds": seconds},
        }
    )
    return 0


def _implied() -> str:
    """Which method each option is taken for, where none is named."""
    return ", ".join(f"{implied([option])} with {registry.word(option)}" for option in registry.OPTIONS)
