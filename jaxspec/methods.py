"""The methods by name, and how the command line's options, a profile and a pair settle on one."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxspec import plan, reports, tree
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


def choose(method: str, args: argparse.Namespace, pair: "Pair", profile: Profile | None) -> Choice:
    """The method with its tree: as asked for, or as `--profile` or else the pair's own profile plans it."""
    source = args.profile
    if profile is None:
        profile, source = pair.profile_at(args.temperature), f"the profile of {pair.name}"
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


def planning_profile(args: argparse.Namespace, methods: Sequence[str]) -> Profile | None:
    """What `--profile` names; also checks that the options of the methods belong to them."""
    for option, owner in (("tree", "sequoia"), ("length", "speculative")):
        if getattr(args, option) is not None and owner not in methods:
            raise ValueError(f"--{option} is for the method {owner}, but {', '.join(methods)} was asked for")
    if args.profile is None:
        return None
    if "auto" not in methods and ("sequoia" not in methods or isinstance(args.tree, TokenTree)):
        raise ValueError("--profile has nothing to plan here: it is for auto, and for sequoia without a given --tree")
    return Profile.load(args.profile)
