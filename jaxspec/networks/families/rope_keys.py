"""Rotary position embedding in a config: `rope_scaling` of transformers 4, `rope_parameters` of transformers 5."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxspec.networks.families.rope import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    LongRopeScaling,
    RopeScaling,
    YarnRopeScaling,
)

UNDERSTOOD = frozenset(
    {
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "original_max_position_embeddings",
    }
)
"""Keys of a config that are read here."""


class Rope(NamedTuple):
    """What a config says of rotation.

    Attributes:
        theta: Base of the frequencies.
        scaling: How they are stretched, or None.
        share: The share of a head's features that is turned, the first ones.
    """

    theta: float
    scaling: RopeScaling | None
    share: float


def read(config: Mapping[str, Any], theta: float = 10000.0, parameters: Mapping[str, Any] | None = None) -> Rope:
    """What a config says of rotation, in either spelling.

    Args:
        config: Of the whole network.
        theta: The base where the config gives none.
        parameters: What stands under `rope_parameters`, where that differs from layer to layer; None: the config's.

    Raises:
        ValueError: A kind or a key that is not known, a key that is missing, or a value that can't be.
    """
    own = (config.get("rope_parameters") or {}) if parameters is None else parameters
    rope = {key: value for key, value in {**(config.get("rope_scaling") or {}), **own}.items() if value is not None}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _KINDS:
        supported = ", ".join(repr(name) for name in _KINDS)
        raise ValueError(f"rope_type={kind!r} is not implemented; supported: {supported}.")
    understood, make = _KINDS[kind]
    for key, value in rope.items():
        if key not in (*_COMMON, *understood):
            raise ValueError(f"{key}={value!r} is not understood among the parameters of rope_type {kind!r}.")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share is not None and not (_is_number(share) and 0 < share <= 1):
        raise ValueError(f"partial_rotary_factor={share!r}: it is the share of a head that is turned, above 0 to 1.")
    base = rope.get("rope_theta", config.get("rope_theta"))
    if base is not None and not (_is_number(base) and base > 0):
        raise ValueError(f"rope_theta={base!r}: the base of the frequencies must be a positive number.")
    scaling = make({**_lengths(config), **rope})
    return Rope(float(theta if base is None else base), scaling, float(1 if share is None else share))


def written(scaling: RopeScaling) -> dict[str, Any]:
    """What stands under `rope_scaling` for a way of stretching; transformers 4 and 5 read it."""
    match scaling:
        case LinearRopeScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case DynamicRopeScaling():
            return {"rope_type": "dynamic", "factor": scaling.factor}
        case YarnRopeScaling():
            own = {name: getattr(scaling, name) for name in ("attention_factor", "beta_fast", "beta_slow", "truncate")}
            kind = {"rope_type": "yarn", "factor": scaling.factor, **own}
        case LongRopeScaling():
            kind = {
                "rope_type": "longrope",
                "short_factor": list(scaling.short_factors),
                "long_factor": list(scaling.long_factors),
                "attention_factor": scaling.attention_factor,
            }
        case Llama3RopeScaling():
            kind = {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
            }
        case _:
            raise ValueError(f"{type(scaling).__name__} has no config.json.")
    return {**kind, "original_max_position_embeddings": scaling.original_max_length}


_COMMON = ("rope_theta", "rope_type", "type", "partial_rotary_factor")


def _lengths(config: Mapping[str, Any]) -> dict[str, Any]:
    """The new and the old length as the whole config has them."""
    new = config.get("max_position_embeddings")
    old = config.get("original_max_position_embeddings")
    lengths = {"max_position_embeddings": new, "original_max_position_embeddings": new if old is None else old}
    return {key: value for key, value in lengths.items() if value is not None}


def _linear(rope: Mapping[str, Any]) -> LinearRopeScaling | None:
    (factor,) = _numbers("linear", rope, "factor")
    return None if factor == 1 else LinearRopeScaling(factor)


def _dynamic(rope: Mapping[str, Any]) -> DynamicRopeScaling:
    factor, length = _numbers("dynamic", rope, "factor", "max_position_embeddings")
    return DynamicRopeScaling(factor, int(length))


def _yarn(rope: Mapping[str, Any]) -> YarnRopeScaling:
    (original,) = _numbers("yarn", rope, "original_max_position_embeddings")
    factor, wanted, fast, slow = _numbers(
        "yarn",
        {
            "factor": rope.get("max_position_embeddings", original) / original,
            "attention_factor": 0.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            **rope,
        },
        *("factor", "attention_factor", "beta_fast", "beta_slow"),
    )
    if "mscale" in rope and "mscale_all_dim" in rope and rope["mscale"] and rope["mscale_all_dim"]:
        numerator, denominator = _numbers("yarn", rope, "mscale", "mscale_all_dim")
        attention = _growth(factor, numerator) / _growth(factor, denominator)
    else:
        attention = _growth(factor, 1.0)
    if "attention_factor" in rope:
        attention = wanted
    return YarnRopeScaling(factor, int(original), attention, fast, slow, bool(rope.get("truncate", True)))


def _growth(factor: float, scale: float) -> float:
    """YaRN's rule for how much sharper attention gets."""
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope(rope: Mapping[str, Any]) -> LongRopeScaling:
    lists = []
    for key in ("short_factor", "long_factor"):
        values = rope.get(key)
        if not isinstance(values, list | tuple) or not all(_is_number(value) and value > 0 for value in values):
            raise ValueError(f"rope_type 'longrope' needs {key}, a list of positive numbers; not {values!r}.")
        lists.append(tuple(float(value) for value in values))
    (original,) = _numbers("longrope", rope, "original_max_position_embeddings")
    ratio = {"factor": rope.get("max_position_embeddings", original) / original, **rope}
    (factor,) = _numbers("longrope", ratio, "factor")
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if "attention_factor" in rope:
        (attention,) = _numbers("longrope", rope, "attention_factor")
    return LongRopeScaling(lists[0], lists[1], int(original), attention)


def _llama3(rope: Mapping[str, Any]) -> Llama3RopeScaling:
    factor, low, high, original = _numbers("llama3", rope, *_LLAMA3)
    if not low < high:
        raise ValueError(f"rope_type 'llama3' has low_freq_factor={low} not below high_freq_factor={high}.")
    return Llama3RopeScaling(factor, low, high, int(original))


def _numbers(kind: str, rope: Mapping[str, Any], *keys: str) -> list[float]:
    """The values of keys that must be there.

    Raises:
        ValueError: They are not, or not numbers from 0 on.
    """
    missing = [key for key in keys if key not in rope]
    if missing:
        raise ValueError(f"rope_type {kind!r} lacks {', '.join(missing)}.")
    for key in keys:
        value = rope[key]
        is_zero_possible = key == "attention_factor"
        if not _is_number(value) or value < 0 or (value == 0 and not is_zero_possible):
            raise ValueError(f"{key}={value!r} of rope_type {kind!r} must be a positive number.")
    return [float(rope[key]) for key in keys]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")

_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], RopeScaling | None]]] = {
    "default": ((), lambda rope: None),
    "linear": (("factor",), _linear),
    "dynamic": (("factor", "original_max_position_embeddings"), _dynamic),
    "yarn": (
        (
            *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
            *("mscale", "mscale_all_dim", "truncate"),
        ),
        _yarn,
    ),
    "longrope": (
        ("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
        _longrope,
    ),
    "llama3": (_LLAMA3, _llama3),
}
"""By `rope_type`: the keys that it has, and how they are read."""
