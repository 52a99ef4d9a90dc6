"""The command line: `jaxspec generate`, `measure`, `plan` and `check`.

Results go to stdout, all else to stderr; `--json` makes of the results one JSON object. A command is a function that
registers it and one that runs it. What needs JAX is imported when a command runs, so that `--help` is quick.
"""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from jaxspec import fetching, plan, prompts, reports, tree
from jaxspec.profiles import Profile
from jaxspec.tree import TokenTree

if TYPE_CHECKING:
    from jaxspec.decode import Decoder
    from jaxspec.pairs import Pair

METHODS = ("autoregressive", "speculative", "sequoia", "auto")

DEFAULT_ACCEPTANCE = (0.6, 0.15, 0.07, 0.04)
DEFAULT_SIZE = 8
"""Where nothing was measured, the tree is the optimal one of so many nodes for this acceptance, a round guess."""

DEFAULT_LENGTH = 4
DEBUG_VARIABLE = "JAXSPEC_DEBUG"
LARGEST_TREE = 4096
FORKED, FAILED, INTERRUPTED = 1, 2, 130
"""Exit statuses."""

_TABLE_SIZES = (2, 4, 8, 16, 32, 64)
_TABLE_DEPTHS = 8

_SHAPES: dict[str, tuple[Callable[..., TokenTree], int, Callable[..., int]]] = {
    "chain": (tree.chain, 1, lambda length: length),
    "star": (tree.star, 1, lambda width: width),
    "chains": (tree.chains, 2, lambda count, length: count * length),
    "comb": (tree.comb, 2, lambda width, depth: width * depth),
    "k-ary": (tree.k_ary, 2, lambda branching, depth: depth if branching < 2 else branching ** min(depth, 64)),
}
"""A shape's constructor, how many numbers it takes, and about how many nodes they make."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, `FORKED`, `FAILED` with a line on stderr, or `INTERRUPTED`."""
    try:
        args = _parser().parse_args(_with_trees(sys.argv[1:] if argv is None else argv))
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
    for register in (_add_generate, _add_measure, _add_plan, _add_check):
        register(commands)
    return parser


def _add(commands: Any, run: Callable[[argparse.Namespace], int], name: str, about: str, epilog: str) -> _Parser:
    """A command's parser, with the option that all have."""
    parser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    return parser


def _add_generate(commands: Any) -> None:
    parser = _add(
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
    _add_models(parser)
    _add_sampling(parser, 128)
    group = parser.add_argument_group("method")
    group.add_argument(
        "--method", choices=METHODS, help="default: sequoia with --tree, speculative with --length, otherwise auto"
    )
    _add_shape(group)


def _generate(args: argparse.Namespace) -> int:
    if args.show and args.json:
        raise ValueError("--show colours the streamed text, but with --json none is: leave one of them out")
    method = args.method or ("sequoia" if args.tree else "speculative" if args.length else "auto")
    profile = _profile(args, (method,))
    prompt = sys.stdin.read().removesuffix("\n") if args.prompt == "-" else args.prompt
    pair = _load(args)
    prompt_ids = pair.encode(prompt, raw=args.raw)
    choice = _choose(method, args, pair, profile)

    import jax

    from jaxspec import decode

    options: dict[str, Any] = {
        "key": jax.random.key(args.seed),
        "max_new_tokens": args.max_new_tokens,
        "sampling": decode.Sampling(args.temperature, args.top_k, args.top_p, args.min_p),
        "stop_ids": pair.stop_ids,
        "draft_temperature": args.draft_temperature,
    }
    decoder = choice.decoder(pair)
    if not args.json:
        reports.stream(decode.stream(decoder, pair.params, [prompt_ids], **options), pair.decode, args.show)
        return 0
    start = time.perf_counter()
    generation = decode.generate(decoder, pair.params, [prompt_ids], **options, logprobs=False)
    seconds = time.perf_counter() - start
    token_ids = generation.tokens[0, : generation.lengths[0]].tolist()
    reports.print_json(
        {
            "text": pair.decode(token_ids),
            "token_ids": token_ids,
            "finish_reason": generation.finish_reason[0],
            "config": _config(args, pair) | choice.config() | {"raw": args.raw},
            "stats": generation.stats.summary() | {"seconds": seconds},
        }
    )
    return 0


def _add_measure(commands: Any) -> None:
    parser = _add(
        commands,
        _measure,
        "measure",
        "Measure a pair's acceptance by child rank and depth, and its step times on this machine, into a profile.",
        "--json prints the profile as it is written.\n\n"
        "example: jaxspec measure --prompts gsm8k.jsonl --num-prompts 50 --out profile.json",
    )
    _add_prompts(parser, 200)
    count = _integer(1)
    parser.add_argument("--prompt-tokens", type=count, default=128, metavar="N", help=_PROMPT_TOKENS_HELP)
    parser.add_argument("--width", type=count, default=8, metavar="N", help="children of a node (default %(default)s)")
    parser.add_argument("--depth", type=count, default=5, metavar="N", help="depths measured (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="FILE", help="where the profile is written, as JSON")
    _add_models(parser)
    _add_sampling(parser, 128)


_PROMPT_TOKENS_HELP = "tokens to which a prompt's text is cut, the chat template included (default %(default)s)"


def _measure(args: argparse.Namespace) -> int:
    for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(args, name) != neutral:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} can't be measured: acceptance is measured by temperature alone; leave it out")
    out = Path(args.out)
    if not os.access(out if out.exists() else out.parent, os.W_OK) or out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"--out {out} can't be written: a file in a folder that exists and can be written is needed")
    chosen = _read_prompts(args)
    pair = _load(args)
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
    profile.save(out)
    if args.json:
        print(out.read_text(encoding="utf-8"), end="")
    else:
        reports.print_profile(profile, args.out)
    return 0


def _add_plan(commands: Any) -> None:
    parser = _add(
        commands,
        _plan,
        "plan",
        "Choose the method and tree that a profile makes the fastest, and show the speedups of others.",
        "example: jaxspec plan profile.json --max-size 32",
    )
    parser.add_argument("profile", metavar="PROFILE", help="a profile from jaxspec measure")
    parser.add_argument(
        "--max-size",
        type=_integer(1),
        metavar="N",
        help=f"most nodes, the root counted (default: the largest measured size, at most {plan.DEFAULT_MAX_SIZE})",
    )
    parser.add_argument(
        "--max-depth",
        type=_integer(1),
        metavar="N",
        help=f"largest depth, in edges (default {plan.DEFAULT_MAX_DEPTH}, and as deep as was measured)",
    )


def _plan(args: argparse.Namespace) -> int:
    profile = Profile.load(args.profile)
    chosen = plan.best(profile, args.max_size, args.max_depth)
    largest = args.max_size or (max(profile.verify_ms) if len(profile.verify_ms) > 1 else plan.DEFAULT_MAX_SIZE)
    sizes = [size for size in _TABLE_SIZES if size <= largest]
    rows = len(profile.acceptance) if isinstance(profile.acceptance[0], tuple) else _TABLE_DEPTHS
    depths = list(range(1, min(_TABLE_DEPTHS, rows, args.max_depth or _TABLE_DEPTHS) + 1))
    speedups: Any = plan.table(profile, sizes, depths) if sizes else []
    if args.json:
        table = {"sizes": sizes, "depths": depths, "speedups": [list(row) for row in speedups]}
        reports.print_json(
            {
                "method": chosen.method,
                "tree": chosen.tree.parents,
                "expected_tokens": chosen.expected_tokens,
                "expected_speedup": chosen.expected_speedup,
                "table": table,
            }
        )
    else:
        reports.print_plan(chosen, profile, sizes, depths, speedups)
    return 0


def _add_check(commands: Any) -> None:
    parser = _add(
        commands,
        _check,
        "check",
        "Compare greedy texts with those of plain decoding, token for token.",
        "Exit status: 0 without forks, 1 with any. In float32 there must be none; in bfloat16 a fork is legitimate\n"
        "where its gap, the distance of both tokens' logits, is as small as bfloat16's rounding.\n"
        "With several methods `forks` and `first_forks` are of all of them, `by_method` has each one's own.\n\n"
        "example: jaxspec check --prompts humaneval.jsonl --num-prompts 20 --methods speculative,sequoia",
    )
    _add_prompts(parser, None)
    _add_models(parser)
    _add_sampling(parser, 64)
    group = parser.add_argument_group("method")
    methods = group.add_mutually_exclusive_group()
    methods.add_argument(
        "--methods",
        type=_method_list,
        default=("speculative", "sequoia"),
        metavar="A,B",
        help=f"methods to compare, of {', '.join(METHODS)} (default speculative,sequoia)",
    )
    methods.add_argument("--method", type=_method_list, dest="methods", metavar="M", help="one method to compare")
    _add_shape(group)


def _check(args: argparse.Namespace) -> int:
    if args.temperature or args.draft_temperature:
        raise ValueError("check compares greedy texts, so that both temperatures are 0: leave them out")
    profile = _profile(args, args.methods)
    chosen = _read_prompts(args)
    pair = _load(args)
    encoded = [pair.encode(prompt.content) for prompt in chosen]
    choices = {method: _choose(method, args, pair, profile) for method in args.methods}

    from jaxspec import parity

    results = {}
    with reports.progress() as progress:
        for method, choice in choices.items():
            progress(method, 0, len(encoded))
            results[method] = parity.greedy(
                choice.decoder(pair),
                pair.params,
                encoded,
                max_new_tokens=args.max_new_tokens,
                stop_ids=pair.stop_ids,
                progress=lambda _, done, total, method=method: progress(method, done, total),
            )
    names = [prompt.id for prompt in chosen]
    if args.json:
        config = _config(args, pair) | {"methods": {method: one.config() for method, one in choices.items()}}
        reports.print_json(reports.parity_entries(results, names) | {"config": config})
    else:
        reports.print_parity(results, names, lambda tokens: pair.tokenizer.decode(tokens))
    return FORKED if any(parity.forks for parity in results.values()) else 0


class Optimal(NamedTuple):
    """`--tree optimal`: the tree that a profile makes the fastest, or its optimal one of a given size."""

    size: int | None = None


class Choice(NamedTuple):
    """A method as it will run.

    Attributes:
        method: "autoregressive", "speculative" or "sequoia".
        tree: Its tree; a chain of the drafted length for "speculative", the root alone for "autoregressive".
        profile: Where the profile that chose it came from; None where none did.
    """

    method: str
    tree: TokenTree
    profile: str | None = None

    def config(self) -> dict[str, Any]:
        """What of it a result states."""
        parents = list(self.tree.parents) if self.method == "sequoia" else None
        length = self.tree.depth if self.method == "speculative" else None
        return {"method": self.method, "tree": parents, "length": length, "profile": self.profile}

    def decoder(self, pair: "Pair") -> "Decoder":
        """The decoder for a pair's models."""
        from jaxspec import decode

        if self.method == "autoregressive":
            return decode.autoregressive(pair.target)
        if self.method == "speculative":
            return decode.speculative(pair.target, pair.draft, self.tree.depth)
        return decode.sequoia(pair.target, pair.draft, self.tree)


def _choose(method: str, args: argparse.Namespace, pair: "Pair", profile: Profile | None) -> Choice:
    """The method with its tree: as asked for, or as `--profile` or else the pair's own profile plans it."""
    source = args.profile
    if profile is None and args.draft_layers is None and pair.profile is not None:  # it is of the pair's own draft
        profile, source = pair.profile, f"the profile of {pair.name}"
    if method == "autoregressive":
        return Choice(method, tree.chain(0))
    if method == "speculative":
        return Choice(method, tree.chain(args.length or DEFAULT_LENGTH))
    if isinstance(args.tree, TokenTree):
        return Choice("sequoia", args.tree)
    if profile is None:
        if args.tree is not None:
            raise ValueError("--tree optimal needs a profile: give --profile FILE; jaxspec measure makes one")
        if method == "auto":
            reports.remark(f"no profile to plan by (--profile): a tree of {DEFAULT_SIZE} nodes that was not measured")
        return Choice("sequoia", plan.optimal_tree(DEFAULT_ACCEPTANCE, DEFAULT_SIZE))
    if profile.temperature != args.temperature:
        reports.remark(f"{source} was measured at temperature {profile.temperature:g}, not {args.temperature:g}")
    if isinstance(args.tree, Optimal) and args.tree.size is not None:
        return Choice("sequoia", plan.optimal_tree(profile.acceptance, args.tree.size), source)
    planned = plan.best(profile)
    if method == "auto":
        return Choice(planned.method, planned.tree, source)
    if planned.tree.size == 1:
        raise ValueError(
            f"{source} makes plain decoding the fastest, so that it gives no tree: take --method auto, or --tree with "
            "the size or the shape that is wanted"
        )
    return Choice("sequoia", planned.tree, source)


def _profile(args: argparse.Namespace, methods: Sequence[str]) -> Profile | None:
    """What `--profile` names; also checks that the options of the methods belong to them."""
    for option, owner in (("tree", "sequoia"), ("length", "speculative")):
        if getattr(args, option) is not None and owner not in methods:
            raise ValueError(f"--{option} is for the method {owner}, but {', '.join(methods)} was asked for")
    return None if args.profile is None else Profile.load(args.profile)


def _read_prompts(args: argparse.Namespace) -> list[prompts.Prompt]:
    chosen = prompts.read(args.prompts, args.num_prompts)
    if args.num_prompts is not None and len(chosen) < args.num_prompts:
        reports.remark(f"{args.prompts} has {len(chosen)} prompts, not {args.num_prompts}: all are taken")
    return chosen


def _load(args: argparse.Namespace) -> "Pair":
    """The pair that the options name."""
    if (args.target is None) != (args.draft is None):
        raise ValueError("--target and --draft go together: give both, or a pair by --pair")
    if args.target is not None and (args.pair is not None or args.draft_layers is not None):
        raise ValueError(
            "--target and --draft name the models, so that --pair and --draft-layers can't: leave them out"
        )

    from jaxspec import pairs

    if args.target is not None:
        return pairs.pair(args.target, args.draft, dtype=args.dtype)
    return pairs.load(args.pair or fetching.DEFAULT, dtype=args.dtype, draft_layers=args.draft_layers)


def _config(args: argparse.Namespace, pair: "Pair") -> dict[str, Any]:
    """Every setting that all methods share, resolved."""
    names = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed", "dtype")
    return {
        "pair": pair.name,
        "sources": dict(pair.sources),
        "draft_temperature": args.temperature if args.draft_temperature is None else args.draft_temperature,
        "stop_ids": list(pair.stop_ids),
    } | {name: getattr(args, name) for name in names}


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--pair", metavar="P", help=f"a pair's name or folder (default {fetching.DEFAULT})")
    group.add_argument("--target", metavar="T", help="a model's folder, .gguf file or hub id, in place of a pair's")
    group.add_argument("--draft", metavar="D", help="the draft for --target")
    group.add_argument(
        "--draft-layers",
        type=_integer(1),
        metavar="N",
        help="draft with the target's first N layers (default: the pair's own draft)",
    )
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the parameters (default %(default)s)"
    )


def _add_sampling(parser: argparse.ArgumentParser, max_new_tokens: int) -> None:
    group = parser.add_argument_group("sampling")
    for option, kind, default, about in (
        ("--temperature", _number(0, math.inf), 0.0, "of the target; 0 is greedy (default %(default)s)"),
        ("--draft-temperature", _number(0, math.inf), None, "of the draft; changes speed only (default: the target's)"),
        (
            "--top-p",
            _number(0, 1, above=True),
            1.0,
            "probability that the likeliest tokens reach (default %(default)s)",
        ),
        ("--top-k", _integer(0), 0, "tokens that are kept; 0 keeps all (default %(default)s)"),
        ("--min-p", _number(0, 1), 0.0, "drop what is below this share of the likeliest's (default %(default)s)"),
        ("--max-new-tokens", _integer(1), max_new_tokens, "limit of new tokens (default %(default)s)"),
        ("--seed", _integer(0, 2**32 - 1), 0, "of the random numbers (default %(default)s)"),
    ):
        metavar = "F" if isinstance(default, float) or default is None else "N"
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=about)


def _add_shape(group: Any) -> None:
    group.add_argument(
        "--length",
        type=_integer(1),
        metavar="N",
        help=f"drafted tokens of a round, for speculative (default {DEFAULT_LENGTH})",
    )
    group.add_argument(
        "--tree",
        type=_tree,
        metavar="TREE",
        help='for sequoia: the parents of its nodes, as in "-1,0,0,1"; or chain:4 (length), star:3 (width), chains:2x3 '
        "(count, length), comb:3x4 (width, depth), k-ary:2x3 (children, depth); or, from a profile, optimal, or "
        "optimal:16 (nodes) (default: optimal where there is a profile; otherwise the optimal tree of "
        f"{DEFAULT_SIZE} nodes for the acceptance {', '.join(map(str, DEFAULT_ACCEPTANCE))})",
    )
    group.add_argument(
        "--profile", metavar="FILE", help="a profile to plan by (default: the pair's own, if it has one)"
    )


def _add_prompts(parser: argparse.ArgumentParser, num_prompts: int | None) -> None:
    parser.add_argument(
        "--prompts", required=True, metavar="FILE", help='JSON lines with "prompt", "messages" or "turns"'
    )
    parser.add_argument(
        "--num-prompts",
        type=_integer(1),
        default=num_prompts,
        metavar="N",
        help=f"how many of its prompts, from the first on (default {num_prompts or 'all'})",
    )


def _integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: whole numbers from `least` to `most`."""
    rule = f"a whole number, {least} or more," if most is None else f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not least <= int(text) <= (math.inf if most is None else most):
            raise argparse.ArgumentTypeError(f"{text!r} is not in range: {rule} is needed")
        return int(text)

    return parse


def _number(least: float, most: float, above: bool = False) -> Callable[[str], float]:
    """An argparse type: finite numbers from `least` (or, with `above`, above it) to `most`."""
    rule = f"a number {'above' if above else 'of at least'} {least:g}" + (
        "" if math.isinf(most) else f", at most {most:g},"
    )

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most and not (above and value == least)):
            raise argparse.ArgumentTypeError(f"{text!r} is not in range: {rule} is needed")
        return value

    return parse


def _method_list(text: str) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(text.split(",")))
    if unknown := [method for method in methods if method not in METHODS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no method; known: {', '.join(METHODS)}")
    return methods


def _tree(text: str) -> TokenTree | Optimal:
    """An argparse type: what `--tree` says."""
    kind, _, rest = text.partition(":")
    try:
        if re.fullmatch(r"[-\d,\s]+", text):
            parsed = TokenTree(tuple(int(parent) for parent in text.split(",")))
        elif kind == "optimal" and re.fullmatch(r"(:\d{1,4})?", text.removeprefix(kind)):
            return Optimal(int(rest) if rest else None)
        elif kind in _SHAPES and re.fullmatch(r"\d{1,4}(x\d{1,4})?", rest):
            make, count, nodes = _SHAPES[kind]
            sizes = [int(size) for size in rest.split("x")]
            if len(sizes) != count:
                raise ValueError(f"{kind} takes {count} numbers, not {len(sizes)}")
            if nodes(*sizes) > LARGEST_TREE:
                raise ValueError(f"a tree has at most {LARGEST_TREE} nodes here")
            parsed = make(*sizes)
        else:
            raise ValueError(
                f'parents as in "-1,0,0,1", a shape of {", ".join(_SHAPES)} with its numbers as in k-ary:2x3, '
                "or optimal is needed"
            )
        if parsed.size < 2:
            raise ValueError("it drafts nothing: a node below the root is needed")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no tree: {error}") from error
    return parsed


def _with_trees(argv: Sequence[str]) -> list[str]:
    """The arguments, with parents joined to their `--tree`: alone, argparse would take the "-1" for an option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] == "--tree" and argument.startswith("-1"):
            joined[-1] = f"--tree={argument}"
        else:
            joined.append(argument)
    return joined
