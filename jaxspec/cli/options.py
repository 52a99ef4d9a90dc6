"""The options that several commands have, in groups, and what they mean."""

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxspec.catalogue import choosing, prompts, registry
from jaxspec.catalogue.choosing import Asked
from jaxspec.cli import values
from jaxspec.pairs import fetching
from jaxspec.tree import TokenTree

if TYPE_CHECKING:
    from jaxspec.decode import Sampling
    from jaxspec.pairs.loading import Pair

_SHAPE: Mapping[str, tuple[Callable[[str], Any], str]] = MappingProxyType(
    {
        "length": (values.integer(1), "N"),
        "max_branches": (values.integer(1), "N"),
        "epsilon": (values.number(0, 1), "F"),
        "width": (values.one_of("adaptive", "all"), "W"),
        "tree": (values.shape, "TREE"),
    }
)
"""The type of each of `registry.OPTIONS`, and what stands for its value in the help."""


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int], name: str, about: str, epilog: str
) -> argparse.ArgumentParser:
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


def add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--pair", metavar="P", help=f"a pair's name or folder (default {fetching.DEFAULT})")
    group.add_argument("--target", metavar="T", help="a model's folder, .gguf file or hub id, in place of a pair's")
    group.add_argument("--draft", metavar="D", help="the draft for --target")
    group.add_argument(
        "--draft-layers",
        type=values.integer(1),
        metavar="N",
        help="draft with the target's first N layers (default: the pair's own draft)",
    )
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the parameters (default %(default)s)"
    )


def add_sampling(parser: argparse.ArgumentParser, max_new_tokens: int) -> None:
    group = parser.add_argument_group("sampling")
    for option, kind, default, about in (
        ("--temperature", values.number(0, math.inf), 0.0, "of the target; 0 is greedy (default %(default)s)"),
        (
            "--draft-temperature",
            values.number(0, math.inf),
            None,
            "of the draft; changes speed only (default: the target's)",
        ),
        (
            "--top-p",
            values.number(0, 1, above=True),
            1.0,
            "probability that the likeliest tokens reach (default %(default)s)",
        ),
        ("--top-k", values.integer(0), 0, "tokens that are kept; 0 keeps all (default %(default)s)"),
        ("--min-p", values.number(0, 1), 0.0, "drop what is below this share of the likeliest's (default %(default)s)"),
        ("--max-new-tokens", values.integer(1), max_new_tokens, "limit of new tokens (default %(default)s)"),
        ("--seed", values.integer(0, 2**32 - 1), 0, "of the random numbers (default %(default)s)"),
    ):
        metavar = "F" if isinstance(default, float) or default is None else "N"
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=about)


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Options that read the text: penalties, bans, a least length."""
    group = parser.add_argument_group(
        "penalties and bans", "Exact under every method. A profile does not foresee that penalties cost acceptance."
    )
    for option, kind, default, about in (
        ("--frequency-penalty", values.number(-math.inf, math.inf), 0.0, "less for each time that a token occurs"),
        ("--presence-penalty", values.number(-math.inf, math.inf), 0.0, "less if a token occurs"),
        ("--repetition-penalty", values.number(0, math.inf, above=True), 1.0, "logits are divided if a token occurs"),
        ("--min-new-tokens", values.integer(0), 0, "new tokens before the text may end"),
    ):
        metavar = "F" if isinstance(default, float) else "N"
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=f"{about} (default %(default)s)")
    group.add_argument("--penalise-prompt", action="store_true", help="the prompt's tokens count, beside the new ones")
    group.add_argument(
        "--bad-word",
        action="append",
        default=[],
        metavar="TEXT",
        help="never emit its tokens, alone or behind a space; may be given several times",
    )
    group.add_argument("--bad-ids", type=values.token_ids, default=(), metavar="N,N", help="never emit these tokens")


def sampling(args: argparse.Namespace, pair: "Pair") -> "Sampling":
    """How tokens are drawn, as the options say, those of `add_text_options` among them where a command has them."""
    from jaxspec.decode import Sampling
    from jaxspec.pairs import texts

    filters = Sampling(args.temperature, args.top_k, args.top_p, args.min_p)
    if "bad_word" not in args:
        return filters
    words = [ids for word in args.bad_word for ids in texts.word_ids(pair.tokenizer, word)]
    return dataclasses.replace(
        filters,
        frequency_penalty=args.frequency_penalty,
        presence_penalty=args.presence_penalty,
        repetition_penalty=args.repetition_penalty,
        penalise_prompt=args.penalise_prompt,
        bad_words=[*args.bad_ids, *words],
    )


def add_shape(group: Any) -> None:
    """The options of the methods, and the profile that they are planned by."""
    for option, about in registry.OPTIONS.items():
        kind, metavar = _SHAPE[option]
        about = f"for {', '.join(registry.owners(option))}: {about} (default: {_default(option)})"
        group.add_argument(registry.word(option), type=kind, metavar=metavar, help=about)
    group.add_argument(
        "--profile", metavar="FILE", help="a profile to plan by (default: the pair's own, if it has one)"
    )


def _default(option: str) -> str:
    """Where an option's value comes from when it is not given, by methods that are alike in that."""
    alike: dict[str, list[str]] = {}
    for name in registry.owners(option):
        method = registry.METHODS[name]
        sources = ["that of the pair's head"] if option in method.of_head else []
        if registry.is_planned(method, option):
            sources.append("the fastest in a profile")
        sources.append(_worded(method.defaults[option]))
        alike.setdefault(", else ".join(sources), []).append(name)
    if len(alike) == 1:
        return next(iter(alike))
    return "; ".join(f"{words} for {', '.join(names)}" for words, names in alike.items())


def _worded(value: Any) -> str:
    """A value as an option would give it."""
    return ",".join(map(str, value.parents)) if isinstance(value, TokenTree) else str(value)


def add_prompts(parser: argparse.ArgumentParser, num_prompts: int | None) -> None:
    parser.add_argument(
        "--prompts",
        required=True,
        metavar="FILE",
        help='JSON lines, or a JSON list, of "prompt", "messages", "turns", …',
    )
    parser.add_argument(
        "--num-prompts",
        type=values.integer(1),
        default=num_prompts,
        metavar="N",
        help=f"how many of its prompts, from the first on (default {num_prompts or 'all'})",
    )


def add_prompt_tokens(parser: argparse.ArgumentParser) -> None:
    about = "tokens to which a prompt's text is cut, the chat template included (default %(default)s)"
    parser.add_argument("--prompt-tokens", type=values.integer(1), default=128, metavar="N", help=about)


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Several methods, speculative and sequoia where none is named, and their shapes."""
    group = parser.add_argument_group("method")
    methods = group.add_mutually_exclusive_group()
    about = f"methods to compare, of {', '.join(registry.NAMES)} (default speculative,sequoia)"
    default = ("speculative", "sequoia")
    methods.add_argument("--methods", type=values.methods, default=default, metavar="A,B", help=about)
    methods.add_argument("--method", type=values.methods, dest="methods", metavar="M", help="one method to compare")
    add_shape(group)


def refuse_filters(args: argparse.Namespace) -> None:
    """Raises where an option narrows the target's distribution by more than its temperature."""
    for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(args, name) != neutral:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} can't be measured: acceptance is measured by temperature alone; leave it out")


def writable(option: str, path: str) -> Path:
    """The path of a result's file, checked before the work that gives it."""
    out = Path(path)
    if not os.access(out if out.exists() else out.parent, os.W_OK) or out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"{option} {out} can't be written: a file in a folder that can be written is needed")
    return out


def read_prompts(args: argparse.Namespace) -> list[prompts.Prompt]:
    """The prompts that the options name."""
    chosen = prompts.read(args.prompts, args.num_prompts)
    if args.num_prompts is not None and len(chosen) < args.num_prompts:
        fetching.remark(f"{args.prompts} has {len(chosen)} prompts, not {args.num_prompts}: all are taken")
    return chosen


def load_pair(args: argparse.Namespace) -> "Pair":
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


def asked(args: argparse.Namespace, methods: Sequence[str]) -> Asked:
    """What the options ask of the methods, checked; a profile that they name is read."""
    given = {option: getattr(args, option) for option in registry.OPTIONS}
    profile = None if args.profile is None else choosing.read_profile(args.profile, "--profile ")
    found = Asked(
        {option: value for option, value in given.items() if value is not None},
        args.temperature,
        profile,
        args.profile,
    )
    choosing.check(found, methods)
    return found


def common_config(args: argparse.Namespace, pair: "Pair") -> dict[str, Any]:
    """Every setting that all methods share, resolved."""
    names = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed", "dtype")
    if "bad_word" in args:
        names += ("frequency_penalty", "presence_penalty", "repetition_penalty", "penalise_prompt", "min_new_tokens")
        names += ("bad_word", "bad_ids")
    return {
        "pair": pair.name,
        "sources": dict(pair.sources),
        "draft_temperature": args.temperature if args.draft_temperature is None else args.draft_temperature,
        "stop_ids": list(pair.stop_ids),
    } | {name: getattr(args, name) for name in names}
