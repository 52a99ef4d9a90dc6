"""The methods by name: how each is made, what it is set by, and what a profile lets one expect of it.

A new method is its file in `decode/` and one entry here. The command line's choices and help, the choice of settings
and the ranking read the entries; which forwards a round takes, a decoder says itself (`Decoder.forwards`). Nothing is
imported that needs JAX until a decoder is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxspec import plan
from jaxspec.plan import predictions
from jaxspec.plan.predictions import Prediction

if TYPE_CHECKING:
    from jaxspec.decode import Decoder
    from jaxspec.pairs.heads import Head
    from jaxspec.pairs.loading import Pair

Setting = Mapping[str, Any]
"""What a method is set by: its options by name, each with a value."""

AUTO = "auto"
"""In place of a method's name: the one that a profile makes the fastest."""

DEFAULT_ACCEPTANCE = (0.6, 0.15, 0.07, 0.04)
DEFAULT_SIZE = 8
"""Where nothing was measured, the tree is the optimal one of so many nodes for this acceptance, a round guess."""

DEFAULT_TREE = plan.optimal_tree(DEFAULT_ACCEPTANCE, DEFAULT_SIZE)

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "length": "drafted tokens of a round: those of a chain (adaedl: at most), or of a branch with its candidate",
        "max_branches": "most candidates of a fork",
        "epsilon": "confidence below which a continuation is cut",
        "width": "how many candidates may be accepted: adaptive, the fewer the surer the draft is, or all",
        "tree": 'the parents of its nodes, as in "-1,0,0,1"; or chain:4 (length), star:3 (width), chains:2x3 '
        "(count, length), comb:3x4 (width, depth), k-ary:2x3 (children, depth); or, from a profile, optimal, or "
        "optimal:16 (nodes)",
    }
)
"""The options that a user may give, and what they say. What else is among a method's defaults its entry alone sets."""


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        name: As it is asked for.
        make: The decoder for a pair's models at a setting.
        defaults: Its options, each with the value where nothing was given, trained or measured.
        candidates: The settings among which a profile chooses, with what it lets one expect of them; None where it
            chooses none, and nothing is predicted. Methods with a tree also take its `size`.
        of_head: Where the pair has an H-RAD head, the options that it brings; empty for a method that reads none.
        stated: What else a result states of the method.
    """

    name: str
    make: Callable[["Pair", Setting], "Decoder"]
    defaults: Setting = field(default_factory=dict)
    candidates: Callable[..., list[Prediction]] | None = None
    of_head: Mapping[str, Callable[["Head"], Any]] = field(default_factory=dict)
    stated: Callable[[], Setting] = dict


def _autoregressive(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode

    return decode.autoregressive(pair.target)


def _speculative(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode

    return decode.speculative(pair.target, pair.draft, setting["length"])


def _sequoia(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode

    return decode.sequoia(pair.target, pair.draft, setting["tree"])


def _topk(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode

    return decode.topk(pair.target, pair.draft, setting["tree"])


def _pearl(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode

    return decode.pearl(pair.target, pair.draft, setting["length"])


def _adaedl(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode

    return decode.adaedl(pair.target, pair.draft, setting["length"])


def _adaedl_constants() -> Setting:
    from jaxspec.decode.trees.adaptive import DEFAULTS

    return {name: value for name, value in DEFAULTS.items() if isinstance(value, float)}


def _specbranch(pair: "Pair", setting: Setting) -> "Decoder":
    from jaxspec import decode, verify

    return decode.specbranch(
        pair.target,
        pair.draft,
        None if setting["hrad"] is None else pair.hrad,
        setting["length"],
        setting["max_branches"],
        setting["epsilon"],
        width=setting["width"],
        fork=verify.RULES[setting["fork"]],
        has_draft_stage=setting["has_draft_stage"],
    )


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("autoregressive", _autoregressive, candidates=predictions.plain),
            Method("speculative", _speculative, {"length": 4}, predictions.chains),
            Method("sequoia", _sequoia, {"tree": DEFAULT_TREE}, predictions.trees),
            Method("topk", _topk, {"tree": DEFAULT_TREE}, predictions.top_k_trees),
            Method("pearl", _pearl, {"length": 4}, predictions.pearls),
            Method("adaedl", _adaedl, {"length": 4}, predictions.adaptive_chains, stated=_adaedl_constants),
            Method(
                "specbranch",
                _specbranch,
                {  # by scripts/branch_settings.py: two thirds of PEARL's rollback at no fewer tokens, at temperature 0
                    "length": 8,
                    "max_branches": 8,
                    "epsilon": 0.4,
                    "width": "all",
                    "fork": "sequoia",
                    "has_draft_stage": False,
                    "hrad": None,
                },
                of_head={
                    "length": lambda head: head.length,
                    "hrad": lambda head: head.folder.name,
                },
            ),
        )
    }
)

NAMES = (*METHODS, AUTO)
"""What a user may name."""


def word(option: str) -> str:
    """An option as the command line has it."""
    return f"--{option.replace('_', '-')}"


def owners(option: str) -> tuple[str, ...]:
    """The names of the methods that an option is for."""
    return tuple(name for name, method in METHODS.items() if option in method.defaults)


def is_planned(method: Method, option: str) -> bool:
    """Whether a profile may choose a method's option."""
    return method.candidates is not None and option in method.defaults
