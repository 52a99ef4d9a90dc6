"""Every method's predicted speed from one profile, each at its best setting."""

from collections.abc import Callable
from typing import Any

from jaxspec.catalogue.registry import METHODS, Method
from jaxspec.plan import predictions
from jaxspec.plan.predictions import Prediction
from jaxspec.profiles import Profile


def rank(profile: Profile) -> tuple[Prediction, ...]:
    """The methods, the fastest on one device first, those that are not predicted last.

    Chains and trees have the setting that is best on one device, PEARL the one that is best on two, a method that no
    profile plans its defaults. A tree that is a chain, or nothing but its root, is left to the methods that these are.
    """
    found = []
    for method in METHODS.values():
        best = _defaults(method) if method.candidates is None else _best(method, profile, predictions.on_two_devices)
        if best is not None and not (best.tree is not None and best.tree.is_chain):
            found.append(best)
    return tuple(sorted(found, key=predictions.on_one_device, reverse=True))


def fastest(method: str, profile: Profile, size: int | None = None) -> Prediction | None:
    """A method at the setting that makes it the fastest on one device; None where a profile says nothing of it.

    Args:
        method: Its name.
        profile: Measured acceptance and step times.
        size: Of its tree; None: any.
    """
    return _best(METHODS[method], profile, predictions.on_one_device, size)


def _best(
    method: Method, profile: Profile, speed: Callable[[Prediction], float], size: int | None = None
) -> Prediction | None:
    if method.candidates is None:
        return None
    options: dict[str, Any] = {} if size is None else {"size": size}
    return max(method.candidates(profile, **options), key=speed, default=None)


def _defaults(method: Method) -> Prediction:
    """A method that is not predicted, at its defaults."""
    shown = {name: value for name, value in method.defaults.items() if name in Prediction._fields}
    return Prediction(method.name, **shown)
