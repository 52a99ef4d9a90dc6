"""How what was asked of a method, a profile and a pair settle on its setting."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from jaxspec import plan
from jaxspec.catalogue import ranking
from jaxspec.catalogue.registry import (
    AUTO,
    DEFAULT_SIZE,
    DEFAULT_TREE,
    METHODS,
    OPTIONS,
    Method,
    Setting,
    is_planned,
    owners,
    word,
)
from jaxspec.pairs.fetching import remark
from jaxspec.plan.predictions import Prediction
from jaxspec.profiles import Profile

if TYPE_CHECKING:
    from jaxspec.decode import Decoder
    from jaxspec.pairs.heads import Head
    from jaxspec.pairs.loading import Pair

Value = TypeVar("Value")


class Optimal(NamedTuple):
    """`--tree optimal`: the tree that a profile makes the fastest, or its optimal one of a given size."""

    size: int | None = None


@dataclass(frozen=True)
class Asked:
    """What was asked of a method.

    Attributes:
        options: By name of `OPTIONS`, those that were given. A tree is a `TokenTree` or `Optimal`.
        temperature: Of the target.
        profile: What to plan by; None: the pair's own, where it has one.
        source: Where that profile came from.
    """

    options: Setting
    temperature: float = 0.0
    profile: Profile | None = None
    source: str | None = None


class Choice(NamedTuple):
    """A method as it will run.

    Attributes:
        method: A name of `METHODS`.
        setting: All its options, each with its value.
        profile: Where the profile that chose one came from; None where none did.
        expected: Where that profile predicts it, the `expected_tokens` a round and the `expected_speedup`.
    """

    method: str
    setting: Setting
    profile: str | None = None
    expected: Mapping[str, float] = {}

    def config(self) -> dict[str, Any]:
        """What of it a result states."""
        setting = dict(self.setting)
        tree, length = setting.pop("tree", None), setting.pop("length", None)
        parents = None if tree is None else list(tree.parents)
        stated = {"method": self.method, "tree": parents, "length": length, "profile": self.profile}
        return stated | dict(self.expected) | setting | dict(METHODS[self.method].stated())

    def decoder(self, pair: "Pair") -> "Decoder":
        """The decoder for a pair's models; its parameters are `pair.params_at(temperature)`."""
        return METHODS[self.method].make(pair, self.setting)


def first_given(*values: Value | None) -> Value | None:
    """The first that is not None: what was asked, else what a head brings, a profile chooses, or is the default."""
    return next((value for value in values if value is not None), None)


def implied(options: Iterable[str]) -> str:
    """The name of the first method that takes all these options, or else the first of them; "auto" without any."""
    given = [option for option in OPTIONS if option in set(options)]
    fitting = [name for name, method in METHODS.items() if given and set(given) <= method.defaults.keys()]
    if fitting:
        return fitting[0]
    return owners(given[-1])[0] if given else AUTO


def check(asked: Asked, methods: Sequence[str]) -> None:
    """Whether what was asked belongs to the methods.

    Raises:
        ValueError: An option that none of them has, or a profile that has nothing to plan.
    """
    for option in asked.options:
        takers = owners(option)
        if not set(takers) & set(methods):
            named = f"{word(option)} is for the method {' or '.join(takers)}"
            raise ValueError(f"{named}, but {', '.join(methods)} was asked for")
    if asked.profile is not None and AUTO not in methods:
        wanted = [METHODS[name] for name in methods]
        if not any(_to_plan(method, asked) for method in wanted):
            planned = {option: [name for name, one in METHODS.items() if is_planned(one, option)] for option in OPTIONS}
            where = (f"for {', '.join(names)} without {word(option)}" for option, names in planned.items() if names)
            raise ValueError(f"--profile has nothing to plan here: it is for {AUTO}, {', and '.join(where)}")


def choose(method: str, asked: Asked, pair: "Pair") -> Choice:
    """The method with its setting: what was asked, else what a head of the pair, a profile or the defaults say.

    Args:
        method: A name of `METHODS`, or `AUTO`.
        asked: What was asked, checked.
        pair: Whose profile and heads of the nearest temperature are taken.

    Raises:
        ValueError: A tree that only a profile gives without one, or from one that makes plain decoding the fastest.
    """
    profile, source = asked.profile, asked.source
    if profile is None:
        profile, source = pair.profile_at(asked.temperature), f"the profile of {pair.name}"
    if profile is None:
        return _without_profile(method, asked, pair)
    if method == AUTO:
        _check_temperature(profile, source, asked)
        return _planned(profile, source)
    entry = METHODS[method]
    planned = None
    if _to_plan(entry, asked):
        _check_temperature(profile, source, asked)
        planned = _fastest(method, asked, profile, source)
    return _settled(entry, asked, pair, planned, source)


def read_profile(file: str, option: str = "") -> Profile:
    """The profile in a file, which an option may have named.

    Raises:
        ValueError: No such file, or anything that `Profile.load` refuses.
    """
    try:
        return Profile.load(file)
    except FileNotFoundError as error:
        raise ValueError(f"{option}{file}: No such file. jaxspec measure makes one") from error


def _to_plan(method: Method, asked: Asked) -> bool:
    """Whether a profile has something to choose: an option that was not given, or a tree that it makes."""
    return any(
        is_planned(method, option) and isinstance(asked.options.get(option), Optimal | None) for option in OPTIONS
    )


def _without_profile(method: str, asked: Asked, pair: "Pair") -> Choice:
    if isinstance(asked.options.get("tree"), Optimal):
        raise ValueError("--tree optimal needs a profile: give --profile FILE; jaxspec measure makes one")
    if method == AUTO:
        remark(f"no profile to plan by (--profile): a tree of {DEFAULT_SIZE} nodes that was not measured")
        return Choice("sequoia", {"tree": DEFAULT_TREE})
    return _settled(METHODS[method], asked, pair, None, None)


def _planned(profile: Profile, source: str | None) -> Choice:
    """What the profile makes the fastest: plain decoding, a chain or a tree."""
    planned = plan.best(profile)
    if planned.method == "autoregressive":
        return Choice(planned.method, {}, source)
    setting = {"tree": planned.tree} if planned.method == "sequoia" else {"length": planned.tree.depth}
    return Choice(planned.method, setting, source, _expected(planned.expected_tokens, planned.expected_speedup))


def _fastest(method: str, asked: Asked, profile: Profile, source: str | None) -> Prediction:
    tree = asked.options.get("tree")
    planned = ranking.fastest(method, profile, tree.size if isinstance(tree, Optimal) else None)
    if planned is None:
        raise ValueError(
            f"{source} makes plain decoding the fastest, so that it gives no tree: take --method auto, or --tree with "
            "the size or the shape that is wanted"
        )
    return planned


def _settled(method: Method, asked: Asked, pair: "Pair", planned: Prediction | None, source: str | None) -> Choice:
    """Each option of the method as the first of them says that has it."""
    head = pair.hrad_at(asked.temperature) if method.of_head else None
    brought = {} if head is None else {option: of(head) for option, of in method.of_head.items()}
    setting = {}
    for option, default in method.defaults.items():
        given = asked.options.get(option)
        given = None if isinstance(given, Optimal) else given
        setting[option] = first_given(given, brought.get(option), getattr(planned, option, None), default)
    if method.of_head:
        _check_head(head, pair, asked, setting)
    if planned is None:
        return Choice(method.name, setting)
    expected = {}
    if planned.expected_tokens is not None and planned.speedup is not None:
        expected = _expected(planned.expected_tokens, planned.speedup)
    return Choice(method.name, setting, source, expected)


def _expected(tokens: float, speedup: float) -> dict[str, float]:
    """What the profile lets one expect, for the result to state beside what was measured."""
    return {"expected_tokens": tokens, "expected_speedup": speedup}


def _check_temperature(profile: Profile, source: str | None, asked: Asked) -> None:
    """Says so where the profile that plans is of another temperature."""
    if profile.temperature != asked.temperature:
        remark(f"{source} was measured at temperature {profile.temperature:g}, not {asked.temperature:g}")


def _check_head(head: "Head | None", pair: "Pair", asked: Asked, setting: Setting) -> None:
    """Says so where there is no head, or one that was trained for something else."""
    if head is None:
        remark(f"{pair.name} has no H-RAD head: the draft's confidence alone cuts (jaxspec train-hrad)")
        return
    if head.temperature != asked.temperature:
        remark(f"the head is for temperature {head.temperature:g}, not {asked.temperature:g}")
    if head.length != setting["length"]:
        remark(f"the head is for the length {head.length}, not {setting['length']}")
