"""The commands `jaxspec bench` and `check`: methods against plain decoding, in speed and token for token."""

import argparse
from collections import Counter
from typing import Any

from jaxspec import prompts, reports
from jaxspec.arguments import (
    add_command,
    add_methods,
    add_models,
    add_prompt_tokens,
    add_prompts,
    add_sampling,
    common_config,
    integer,
    load_pair,
    read_prompts,
    writable,
)
from jaxspec.methods import choose, planning_profile

FORKED = 1
"""Exit status of a check that found any."""


def register(commands: Any) -> None:
    _add_bench(commands)
    _add_check(commands)


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
