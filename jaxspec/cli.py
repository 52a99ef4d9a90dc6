"""The command line: `jaxspec generate`, `measure`, `plan`, `train-hrad`, `bench` and `check`.

Results go to stdout, all else to stderr; `--json` makes of the results one JSON object. A command is a function that
registers it and one that runs it. What needs JAX is imported when a command runs, so that `--help` is quick.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxspec import compare_commands, fetching, profile_commands, reports, train_hrad
from jaxspec.arguments import (
    add_command,
    add_models,
    add_sampling,
    add_shape,
    common_config,
    load_pair,
    with_trees,
)
from jaxspec.methods import METHODS, choose, planning_profile

DEBUG_VARIABLE = "JAXSPEC_DEBUG"
FAILED, INTERRUPTED = 2, 130
"""Exit statuses, beside those of the commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: its own, `FAILED` with a line on stderr, or `INTERRUPTED`."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it advises to install torch
    try:
        words = sys.argv[1:] if argv is None else argv
        args = _parser().parse_args(with_trees(words), argparse.Namespace(command=shlex.join(["jaxspec", *words])))
        return args.run(args)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone: nothing is left to be told, not even by the flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, OSError, fetching.Unavailable) as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        about = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        fetching.report(f"error: {' '.join(about.split())}")
        return FAILED


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxspec",
        description="Lossless speculative decoding in JAX.",
        epilog=f"{DEBUG_VARIABLE}=1 in the environment shows the traceback of an error.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_generate(commands)
    for module in (profile_commands, train_hrad, compare_commands):
        module.register(commands)
    return parser


def _add_generate(commands: Any) -> None:
    parser = add_command(
        commands,
        _generate,
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
    add_models(parser)
    add_sampling(parser, 128)
    group = parser.add_argument_group("method")
    group.add_argument(
        "--method",
        choices=METHODS,
        help="default: sequoia with --tree, specbranch with --max-branches or --epsilon, "
        "speculative with --length, otherwise auto",
    )
    add_shape(group)


def _generate(args: argparse.Namespace) -> int:
    if args.show and args.json:
        raise ValueError("--show colours the streamed text, but with --json none is: leave one of them out")
    method = args.method or _implied_method(args)
    profile = planning_profile(args, (method,))
    prompt = sys.stdin.read().removesuffix("\n") if args.prompt == "-" else args.prompt
    pair = load_pair(args)
    prompt_ids = pair.encode(prompt, raw=args.raw)
    choice = choose(method, args, pair, profile)

    import jax

    from jaxspec import decode

    options: dict[str, Any] = {
        "key": jax.random.key(args.seed),
        "max_new_tokens": args.max_new_tokens,
        "sampling": decode.Sampling(args.temperature, args.top_k, args.top_p, args.min_p),
        "stop_ids": pair.stop_ids,
        "draft_temperature": args.draft_temperature,
    }
    decoder, params = choice.decoder(pair), pair.params_at(args.temperature)
    if not args.json:
        reports.stream(decode.stream(decoder, params, [prompt_ids], **options), pair.decode, args.show)
        return 0
    start = time.perf_counter()
    generation = decode.generate(decoder, params, [prompt_ids], **options, logprobs=False)
    seconds = time.perf_counter() - start
    token_ids = generation.tokens[0, : generation.lengths[0]].tolist()
    reports.print_json(
        {
            "text": pair.decode(token_ids),
            "token_ids": token_ids,
            "finish_reason": generation.finish_reason[0],
            "config": common_config(args, pair) | choice.config() | {"raw": args.raw},
            "stats": generation.stats.summary() | {"seconds": seconds},
        }
    )
    return 0


def _implied_method(args: argparse.Namespace) -> str:
    """The method that the options of a shape are of."""
    if args.tree:
        return "sequoia"
    if args.max_branches is not None or args.epsilon is not None:
        return "specbranch"
    return "speculative" if args.length else "auto"
