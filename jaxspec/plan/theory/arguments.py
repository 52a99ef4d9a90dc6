"""The arguments of the closed forms, checked: a refusal names the argument, its value and the rule."""

import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)
VerifyTime = float | Callable[[int], float]
"""Time of a target step: one number, or a function of its number of tokens such as `Profile.verify_time`."""


def probability(name: str, value: Any) -> Any:
    """The probability or the array of them, in float64; ValueError where one lies outside [0, 1]."""
    values = np.asarray(value, np.float64)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"{name} is {value}, but a probability lies in [0, 1]")
    return values if values.ndim else float(values)


def integer(name: str, value: int, minimum: int) -> int:
    """The integer; ValueError where it is none, or below the minimum."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} is {value!r}, but an integer is needed") from error
    if number < minimum:
        raise ValueError(f"{name} is {value}, but at least {minimum} is needed")
    return number


def duration(name: str, value: float) -> float:
    """The time, of any unit; ValueError where it is negative or not finite."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}, but a time is finite, 0 or more")
    return float(value)


def step_time(verify_time: VerifyTime, tokens: int) -> float:
    """Time of a target step over so many tokens; ValueError as `duration`."""
    if callable(verify_time):
        return duration(f"verify_time({tokens})", verify_time(tokens))
    return duration("verify_time", verify_time)


def ratio(c: float) -> float:
    """c; ValueError where it is not above 0, or not finite."""
    if not 0 < c < math.inf:
        raise ValueError(f"c is {c}, but target step / draft step is finite and above 0")
    return float(c)
