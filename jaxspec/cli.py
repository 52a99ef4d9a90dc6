"""The command line: `jaxspec generate`, `measure`, `plan`, `train-hrad`, `bench` and `check`.

Results go to stdout, all else to stderr; `--json` makes of the results one JSON object. A command is a function that
registers it and one that runs it. What needs JAX is imported when a command runs, so that `--help` is quick.
"""

import argparse
import dataclasses
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxspec import fetching, plan, prompts, ranking, reports, train_hrad
from jaxspec.arguments import (
    add_command,
    add_methods,
    add_models,
    add_prompt_tokens,
    add_prompts,
    add_sampling,
    add_shape,
    common_config,
    integer,
    load_pair,
    read_prompts,
    refuse_filters,
    with_trees,
    writable,
)
from jaxspec.methods import METHODS, choose, planning_profile, read_profile

DEBUG_VARIABLE = "JAXSPEC_DEBUG"
FORKED, FAILED, INTERRUPTED = 1, 2, 130
"""Exit statuses."""

_TABLE_SIZES = (2, 4, 8, 16, 32, 64)
_TABLE_DEPTHS = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, `FORKED`, `FAILED` with a line on stderr, or `INTERRUPTED`."""
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
    for register in (_add_generate, _add_measure, _add_plan, train_hrad.register, _add_bench, _add_check):
        register(commands)
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


def _add_measure(commands: Any) -> None:
    parser = add_command(
        commands,
        _measure,
        "measure",
        "Measure a pair's acceptance by child rank and depth, and its step times on this machine, into a profile.",
        "--json prints the profile as it is written.\n\n"
        "example: jaxspec measure --prompts gsm8k.jsonl --num-prompts 50 --out profile.json",
    )
    add_prompts(parser, 200)
    add_prompt_tokens(parser)
    count = integer(1)
    parser.add_argument("--width", type=count, default=8, metavar="N", help="children of a node (default %(default)s)")
    parser.add_argument("--depth", type=count, default=5, metavar="N", help="depths measured (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="FILE", help="where the profile is written, as JSON")
    add_models(parser)
    add_sampling(parser, 128)


def _measure(args: argparse.Namespace) -> int:
    refuse_filters(args)
    out = writable("--out", args.out)
    chosen = read_prompts(args)
    pair = load_pair(args)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]

    import jax

    from jaxspec import measure

    with reports.progress() as progress:
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
        reports.print_profile(profile, args.out)
    return 0


def _add_plan(commands: Any) -> None:
    parser = add_command(
        commands,
        _plan,
        "plan",
        "Choose the method and tree that a profile makes the fastest, and show the speedups of others.",
        "example: jaxspec plan profile.json --max-size 32",
    )
    parser.add_argument("profile", metavar="PROFILE", help="a profile from jaxspec measure")
    parser.add_argument(
        "--max-size",
        type=integer(1),
        metavar="N",
        help=f"most nodes, the root counted (default: the largest measured size, at most {plan.DEFAULT_MAX_SIZE})",
    )
    parser.add_argument(
        "--max-depth",
        type=integer(1),
        metavar="N",
        help=f"largest depth, in edges (default {plan.DEFAULT_MAX_DEPTH}, and as deep as was measured)",
    )


def _plan(args: argparse.Namespace) -> int:
    profile = read_profile(args.profile)
    chosen = plan.best(profile, args.max_size, args.max_depth)
    largest = args.max_size or (max(profile.verify_ms) if len(profile.verify_ms) > 1 else plan.DEFAULT_MAX_SIZE)
    sizes = [size for size in _TABLE_SIZES if size <= largest]
    rows = len(profile.acceptance) if isinstance(profile.acceptance[0], tuple) else _TABLE_DEPTHS
    depths = list(range(1, min(_TABLE_DEPTHS, rows, args.max_depth or _TABLE_DEPTHS) + 1))
    speedups: Any = plan.table(profile, sizes, depths) if sizes else []
    ranked = ranking.rank(profile)
    if args.json:
        table = {"sizes": sizes, "depths": depths, "speedups": [list(row) for row in speedups]}
        reports.print_json(
            {
                "method": chosen.method,
                "tree": chosen.tree.parents,
                "expected_tokens": chosen.expected_tokens,
                "expected_speedup": chosen.expected_speedup,
                "table": table,
                "methods": [one._asdict() | {"tree": one.tree and one.tree.parents} for one in ranked],
            }
        )
    else:
        reports.print_plan(chosen, profile, sizes, depths, speedups)
        reports.print_ranking(ranked)
    return 0


def _add_bench(commands: Any) -> None:
    parser = add_command(
        commands,
        _bench,
        "bench",
        "Time methods in turns, prompt by prompt, against plain decoding (always timed too).",
        "What is timed is a whole generation, the reading of its prompt included; compiling is done before.\n"
        "Speedups are medians over prompts of the ratio of seconds per token, with quartiles. Draft and verify\n"
        "are the forwards of a round, measured alone; overhead is what is left of a round.\n\n"
        "example: jaxspec bench --prompts spec_bench.jsonl --per-category 10 --methods speculative,sequoia",
    )
    add_prompts(parser, None)
    add_prompt_tokens(parser)
    for option, default, about in (
        ("--per-category", None, "in place of --num-prompts: how many prompts of each category, from the first on"),
        ("--repeats", 1, "how often each prompt is timed (default %(default)s)"),
    ):
        parser.add_argument(option, type=integer(1), default=default, metavar="N", help=about)
    about = "end texts at the stop ids (default: all go on to --max-new-tokens, so that methods emit equally many)"
    parser.add_argument("--stop", action="store_true", help=about)
    parser.add_argument("--plot", metavar="FILE.png", help="draw the speedups by category there (the extra `plot`)")
    add_models(parser)
    add_sampling(parser, 128)
    add_methods(parser)


def _bench(args: argparse.Namespace) -> int:
    from jaxspec import bench, bench_report, decode

    if args.plot is not None:
        bench_report.check_plot(writable("--plot", args.plot))
    if args.num_prompts and args.per_category:
        raise ValueError("--num-prompts and --per-category both say which prompts are taken: leave one of them out")
    methods = tuple(dict.fromkeys((bench.BASELINE, *args.methods)))
    if len(methods) > len(args.methods):
        reports.remark(f"{bench.BASELINE} is timed too: speedups are over it")
    profile = planning_profile(args, methods)
    chosen = read_prompts(args)
    if args.per_category:
        chosen = [chosen[place] for place in bench.first_of_each([one.task for one in chosen], args.per_category)]
    pair = load_pair(args)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]
    choices = {method: choose(method, args, pair, profile) for method in methods}
    stop_ids = pair.stop_ids if args.stop else ()

    import jax

    with reports.progress() as progress:
        report = bench.run(
            {method: choice.decoder(pair) for method, choice in choices.items()},
            pair.params_at(args.temperature),
            encoded,
            key=jax.random.key(args.seed),
            categories=[prompt.task for prompt in chosen],
            max_new_tokens=args.max_new_tokens,
            sampling=decode.Sampling(args.temperature, args.top_k, args.top_p, args.min_p),
            draft_temperature=args.draft_temperature,
            stop_ids=stop_ids,
            repeats=args.repeats,
            progress=progress,
        )
    asked = {name: getattr(args, name) for name in ("prompts", "prompt_tokens", "repeats")}
    lengths = {"longest_prompt": max(map(len, encoded)), "categories": Counter(report.categories)}
    config = common_config(args, pair) | asked | lengths | {"stop_ids": list(stop_ids), "protocol": bench.__doc__}
    if args.plot is not None:
        bench_report.plot(report, args.plot, bench_report.heading(config))
    if args.json:
        entries = bench_report.entries(report, {method: choice.config() for method, choice in choices.items()})
        environment = bench.environment(args.dtype, args.command)
        reports.print_json(entries | {"environment": environment, "config": config})
    else:
        bench_report.print_report(reports.results_console(), report, bench_report.heading(config))
    return 0


def _add_check(commands: Any) -> None:
    parser = add_command(
        commands,
        _check,
        "check",
        "Compare greedy texts with those of plain decoding, token for token.",
        "Exit status: 0 without forks, 1 with any. In float32 there must be none; in bfloat16 a fork is legitimate\n"
        "where its gap, the distance of both tokens' logits, is as small as bfloat16's rounding.\n"
        "With several methods `forks` and `first_forks` are of all of them, `by_method` has each one's own.\n\n"
        "example: jaxspec check --prompts humaneval.jsonl --num-prompts 20 --methods speculative,sequoia",
    )
    add_prompts(parser, None)
    add_models(parser)
    add_sampling(parser, 64)
    add_methods(parser)


def _check(args: argparse.Namespace) -> int:
    if args.temperature or args.draft_temperature:
        raise ValueError("check compares greedy texts, so that both temperatures are 0: leave them out")
    profile = planning_profile(args, args.methods)
    chosen = read_prompts(args)
    pair = load_pair(args)
    encoded = [pair.encode(prompt.content) for prompt in chosen]
    choices = {method: choose(method, args, pair, profile) for method in args.methods}

    from jaxspec import decode, parity

    decoders = {"plain decoding": decode.autoregressive(pair.target)}
    decoders |= {method: choice.decoder(pair) for method, choice in choices.items()}
    texts = {}
    with reports.progress() as progress:
        for method, decoder in decoders.items():
            progress(method, 0, len(encoded))
            texts[method] = parity.texts(
                decoder,
                pair.params_at(0.0),
                encoded,
                max_new_tokens=args.max_new_tokens,
                stop_ids=pair.stop_ids,
                progress=lambda _, done, total, method=method: progress(method, done, total),
            )
    plain = texts.pop("plain decoding")
    results = {
        method: parity.compare(pair.target, pair.params["target"], encoded, plain, own) for method, own in texts.items()
    }
    names = [prompt.id for prompt in chosen]
    if args.json:
        config = common_config(args, pair) | {"methods": {method: one.config() for method, one in choices.items()}}
        reports.print_json(reports.parity_entries(results, names) | {"config": config})
    else:
        reports.print_parity(results, names, lambda tokens: pair.tokenizer.decode(tokens))
    return FORKED if any(result.forks for result in results.values()) else 0
