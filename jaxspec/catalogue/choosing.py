"""The methods by name, and how the command line's options, a profile and a pair settle on one."""

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxspec import plan
from jaxspec.pairs import fetching
from jaxspec.plan import ranking
from jaxspec.profiles import Profile
from jaxspec.tree import TokenTree

if TYPE_CHECKING:
    from jaxspec.decode import Decoder
    from jaxspec.pairs.loading import Pair

METHODS = ("autoregressive", "speculative", "sequoia", "pearl", "adaedl", "specbranch", "auto")

OWNERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tree": ("sequoia",),
        "length": ("speculative", "pearl", "adaedl", "specbranch"),
        "max_branches": ("specbranch",),
        "epsilon": ("specbranch",),
    }
)
"""Options of a method's shape, and the methods that they are for."""

DEFAULT_ACCEPTANCE = (0.6, 0.15, 0.07, 0.04)
DEFAULT_SIZE = 8
"""Where nothing was measured, the tree is the optimal one of so many nodes for this acceptance, a round guess."""

DEFAULT_LENGTH = 4
"""Where nothing was measured."""

DEFAULT_BRANCHES = 3
"""The most in SpecBranch's own code."""

DEFAULT_EPSILON = 0.4
"""Where no head says which confidence is low, a round guess."""


class Optimal(NamedTuple):
    """`--tree optimal`: the tree that a profile makes the fastest, or its optimal one of a given size."""

    size: int | None = None


class Choice(NamedTuple):
    """A method as it will run.

    Attributes:
        method: One of `METHODS`, but for "auto".
        tree: Its tree, for "sequoia".
        length: The drafted length of the methods that have one.
        profile: Where the profile that chose it came from; None where none did.
        settings: What else there is to state: where a profile chose, the `expected_tokens` a round and the
            `expected_speedup`; for "specbranch" `max_branches`, `epsilon`, and `hrad`, the name of its head, or None.
    """

    method: str
    tree: TokenTree | None = None
    length: int | None = None
    profile: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})

    def config(self) -> dict[str, Any]:
        """What of it a result states."""
        parents = None if self.tree is None else list(self.tree.parents)
        stated = {"method": self.method, "tree": parents, "length": self.length, "profile": self.profile}
        return stated | dict(self.settings)

    def decoder(self, pair: "Pair") -> "Decoder":
        """The decoder for a pair's models; its parameters are `pair.params_at(temperature)`."""
        from jaxspec import decode

        if self.method == "autoregressive":
            return decode.autoregressive(pair.target)
        if self.method == "sequoia":
            assert self.tree is not None
            return decode.sequoia(pair.target, pair.draft, self.tree)
        assert self.length is not None
        if self.method == "specbranch":
            head = None if self.settings["hrad"] is None else pair.hrad
            branches, epsilon = self.settings["max_branches"], self.settings["epsilon"]
            return decode.specbranch(pair.target, pair.draft, head, self.length, branches, epsilon)
        make = {"speculative": decode.speculative, "pearl": decode.pearl, "adaedl": decode.adaedl}[self.method]
        return make(pair.target, pair.draft, self.length)


def choose(method: str, args: argparse.Namespace, pair: "Pair", profile: Profile | None) -> Choice:
    """The method with its tree: as asked for, or as `--profile` or else the pair's own profile plans it."""
    source = args.profile
    if profile is None:
        profile, source = pair.profile_at(args.temperature), f"the profile of {pair.name}"
    if method == "autoregressive":
        return Choice(method)
    if method in OWNERS["length"]:
        return _of_length(method, args, pair, profile, source)
    if isinstance(args.tree, TokenTree):
        return Choice("sequoia", args.tree)
    if profile is None:
        if args.tree is not None:
            raise ValueError("--tree optimal needs a profile: give --profile FILE; jaxspec measure makes one")
        if method == "auto":
            fetching.report(f"no profile to plan by (--profile): a tree of {DEFAULT_SIZE} nodes that was not measured")
        return Choice("sequoia", plan.optimal_tree(DEFAULT_ACCEPTANCE, DEFAULT_SIZE))
    _check_temperature(profile, source, args)
    if isinstance(args.tree, Optimal) and args.tree.size is not None:
        return _planned(plan.predict(plan.optimal_tree(profile.acceptance, args.tree.size), profile), source, "sequoia")
    planned = plan.best(profile)
    if method == "auto":
        return _planned(planned, source)
    if planned.tree.size == 1:
        raise ValueError(
            f"{source} makes plain decoding the fastest, so that it gives no tree: take --method auto, or --tree with "
            "the size or the shape that is wanted"
        )
    return _planned(planned, source, "sequoia")


def planning_profile(args: argparse.Namespace, methods: Sequence[str]) -> Profile | None:
    """What `--profile` names; also checks that the options of the methods belong to them."""
    for option, owners in OWNERS.items():
        if getattr(args, option) is not None and not set(owners) & set(methods):
            named = f"--{option.replace('_', '-')} is for the method {' or '.join(owners)}"
            raise ValueError(f"{named}, but {', '.join(methods)} was asked for")
    if args.profile is None:
        return None
    plans_tree = "sequoia" in methods and not isinstance(args.tree, TokenTree)
    plans_length = args.length is None and bool(set(OWNERS["length"]) & set(methods))
    plans_branches = "specbranch" in methods and (args.max_branches is None or args.epsilon is None)
    if not ("auto" in methods or plans_tree or plans_length or plans_branches):
        raise ValueError(
            "--profile has nothing to plan here: it is for auto, for sequoia without a given --tree, for the methods "
            "with a length without --length, and for specbranch without --max-branches or --epsilon"
        )
    return read_profile(args.profile, "--profile ")


def read_profile(file: str, option: str = "") -> Profile:
    """The profile in a file, which an option may have named.

    Raises:
        ValueError: No such file, or anything that `Profile.load` refuses.
    """
    try:
        return Profile.load(file)
    except FileNotFoundError as error:
        raise ValueError(f"{option}{file}: No such file. jaxspec measure makes one") from error


def _check_temperature(profile: Profile, source: str | None, args: argparse.Namespace) -> None:
    """Says so where the profile that plans is of another temperature."""
    if profile.temperature != args.temperature:
        fetching.report(f"{source} was measured at temperature {profile.temperature:g}, not {args.temperature:g}")


def _planned(planned: plan.Plan, source: str | None, method: str | None = None) -> Choice:
    """A plan as a method: its own, which is plain decoding, a chain or a tree, or the one that was asked for."""
    method = method or planned.method
    expected = _expected(planned.expected_tokens, planned.expected_speedup)
    if method == "sequoia":
        return Choice(method, planned.tree, None, source, expected)
    if method == "autoregressive":
        return Choice(method, profile=source)
    return Choice(method, None, planned.tree.depth, source, expected)


def _expected(tokens: float, speedup: float) -> dict[str, float]:
    """What the profile lets one expect, for the result to state beside what was measured."""
    return {"expected_tokens": tokens, "expected_speedup": speedup}


def _of_length(
    method: str, args: argparse.Namespace, pair: "Pair", profile: Profile | None, source: str | None
) -> Choice:
    """A method with a drafted length: the one asked for, else the fastest in the profile, else `DEFAULT_LENGTH`."""
    if method == "specbranch":
        return _specbranch(args, pair, profile, source)
    choice = Choice(method, length=args.length or DEFAULT_LENGTH)
    if args.length is None and profile is not None:
        _check_temperature(profile, source, args)
        best = ranking.best(method, profile)
        choice = Choice(method, None, best.length, source, _expected(best.expected_tokens, best.speedup))
    if method == "adaedl":
        from jaxspec.decode.trees.adaptive import DEFAULTS

        constants = {name: value for name, value in DEFAULTS.items() if isinstance(value, float)}
        choice = choice._replace(settings={**choice.settings, **constants})
    return choice


def _specbranch(args: argparse.Namespace, pair: "Pair", profile: Profile | None, source: str | None) -> Choice:
    """SpecBranch: what was asked for, else what the head of the nearest temperature has, else the fastest by a profile.

    Predicted is the cut by confidence alone, and only from a profile that has a calibration.
    """
    head = pair.hrad_at(args.temperature)
    length, branches, epsilon = args.length, args.max_branches, args.epsilon
    if head is not None:
        length, epsilon = length or head.length, head.epsilon if epsilon is None else epsilon
    expected, planned_by = {}, None
    if profile is not None:
        _check_temperature(profile, source, args)
        best = ranking.best("specbranch", profile, length=length, max_branches=branches, epsilon=epsilon)
        length, branches = length or best.length, branches or best.max_branches
        epsilon = best.epsilon if epsilon is None else epsilon
        planned_by = source
        if best.epsilon is not None:
            expected = _expected(best.expected_tokens, best.speedup)
    length, branches = length or DEFAULT_LENGTH, branches or DEFAULT_BRANCHES
    epsilon = DEFAULT_EPSILON if epsilon is None else epsilon
    if head is None:
        fetching.report(f"{pair.name} has no H-RAD head: the draft's confidence alone cuts (jaxspec train-hrad)")
    else:
        if head.temperature != args.temperature:
            fetching.report(f"the head is for temperature {head.temperature:g}, not {args.temperature:g}")
        if head.length != length:
            fetching.report(f"the head is for the length {head.length}, not {length}")
    settings = {**expected, "max_branches": branches, "epsilon": epsilon}
    settings |= {"fork": "sequoia", "has_draft_stage": False, "hrad": None if head is None else head.folder.name}
    return Choice("specbranch", None, length, planned_by, settings)
