"""The command `jaxspec bench`: methods against plain decoding, in speed."""

import argparse
from collections import Counter
from typing import Any

from jaxspec.catalogue import prompts
from jaxspec.catalogue.choosing import choose
from jaxspec.cli import options, values
from jaxspec.cli.show import terminal
from jaxspec.pairs import fetching


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "bench",
        "Time methods in turns, prompt by prompt, against plain decoding (always timed too).",
        "What is timed is a whole generation, the reading of its prompt included; compiling is done before.\n"
        "Speedups are medians over prompts of the ratio of seconds per token, with quartiles. Draft and verify\n"
        "are the forwards of a round, measured alone; overhead is what is left of a round.\n\n"
        "example: jaxspec bench --prompts spec_bench.jsonl --per-category 10 --methods speculative,sequoia",
    )
    options.add_prompts(parser, None)
    options.add_prompt_tokens(parser)
    for option, default, about in (
        ("--per-category", None, "in place of --num-prompts: how many prompts of each category, from the first on"),
        ("--repeats", 1, "how often each prompt is timed (default %(default)s)"),
    ):
        parser.add_argument(option, type=values.integer(1), default=default, metavar="N", help=about)
    about = "end texts at the stop ids (default: all go on to --max-new-tokens, so that methods emit equally many)"
    parser.add_argument("--stop", action="store_true", help=about)
    parser.add_argument("--plot", metavar="FILE.png", help="draw the speedups by category there (the extra `plot`)")
    options.add_models(parser)
    options.add_sampling(parser, 128)
    options.add_methods(parser)


def run(args: argparse.Namespace) -> int:
    from jaxspec.cli.show import bench_tables, plots
    from jaxspec.study import bench, bench_results

    if args.plot is not None:
        plots.check_plot(options.writable("--plot", args.plot))
    if args.num_prompts and args.per_category:
        raise ValueError("--num-prompts and --per-category both say which prompts are taken: leave one of them out")
    methods = tuple(dict.fromkeys((bench.BASELINE, *args.methods)))
    if len(methods) > len(args.methods):
        fetching.remark(f"{bench.BASELINE} is timed too: speedups are over it")
    asked = options.asked(args, methods)
    chosen = options.read_prompts(args)
    if args.per_category:
        chosen = [chosen[place] for place in bench.first_of_each([one.task for one in chosen], args.per_category)]
    pair = options.load_pair(args)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]
    choices = {method: choose(method, asked, pair) for method in methods}
    stop_ids = pair.stop_ids if args.stop else ()

    import jax

    with terminal.progress() as progress:
        report = bench.run(
            {method: choice.decoder(pair) for method, choice in choices.items()},
            pair.params_at(args.temperature),
            encoded,
            key=jax.random.key(args.seed),
            categories=[prompt.task for prompt in chosen],
            max_new_tokens=args.max_new_tokens,
            sampling=options.sampling(args, pair),
            draft_temperature=args.draft_temperature,
            stop_ids=stop_ids,
            repeats=args.repeats,
            progress=progress,
        )
    of_prompts = {name: getattr(args, name) for name in ("prompts", "prompt_tokens", "repeats")}
    lengths = {"longest_prompt": max(map(len, encoded)), "categories": Counter(report.categories)}
    config = (
        options.common_config(args, pair)
        | of_prompts
        | lengths
        | {"stop_ids": list(stop_ids), "protocol": bench.__doc__}
    )
    if args.plot is not None:
        plots.plot(report, args.plot, bench_tables.heading(config))
    if args.json:
        entries = bench_results.entries(report, {method: choice.config() for method, choice in choices.items()})
        environment = bench.environment(args.dtype, args.command)
        terminal.print_json(entries | {"environment": environment, "config": config})
    else:
        bench_tables.print_report(terminal.results_console(), report, bench_tables.heading(config))
    return 0
