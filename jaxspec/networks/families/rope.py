"""Rotary position embedding as configs describe it: the ways of stretching it beyond the length it was trained for.

Each kind is a frozen dataclass with `scaled`, which gives the frequencies, and `attention_factor`, by which cosines and
sines are multiplied. Two kinds, `Dynamic` and `LongRope`, depend on how long a sequence may become. They are computed
for the length that the network is used for, once and for all: cached keys, chunks of a prompt and trees must agree on
them, which frequencies that change while a text grows can't.
"""

import dataclasses
import math
from typing import Protocol

import numpy as np


class RopeScaling(Protocol):
    """A way of stretching rotary frequencies."""

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        ...

    def scaled(self, theta: float, size: int, length: int | None) -> np.ndarray:
        """`[size / 2]` radians a position turns each pair of features by.

        Args:
            theta: Base of the frequencies.
            size: Features of a head that are turned.
            length: Positions that the network is used for; None: those that it was trained for.
        """
        ...


def trained_length(scaling: RopeScaling | None) -> int | None:
    """The length up to which a kind that depends on the length stretches nothing; None for the other kinds."""
    return scaling.original_max_length if isinstance(scaling, DynamicRopeScaling | LongRopeScaling) else None


def plain(theta: float, size: int) -> np.ndarray:
    """`[size / 2]` frequencies that are not stretched."""
    return theta ** -(np.arange(0, size, 2) / size)


@dataclasses.dataclass(frozen=True)
class LinearRopeScaling:
    """All frequencies are divided by one factor (`rope_type` "linear")."""

    factor: float
    attention_factor: float = dataclasses.field(default=1.0, init=False)

    def scaled(self, theta: float, size: int, length: int | None) -> np.ndarray:
        """As `RopeScaling.scaled`."""
        return plain(theta, size) / self.factor


@dataclasses.dataclass(frozen=True)
class DynamicRopeScaling:
    """The base grows with the length (`rope_type` "dynamic"): theta (factor L / L0 - factor + 1)^(d / (d - 2)).

    Attributes:
        factor: How fast it grows.
        original_max_length: L0, the positions up to which nothing is stretched.
    """

    factor: float
    original_max_length: int
    attention_factor: float = dataclasses.field(default=1.0, init=False)

    def scaled(self, theta: float, size: int, length: int | None) -> np.ndarray:
        """As `RopeScaling.scaled`."""
        ratio = max(length or 0, self.original_max_length) / self.original_max_length
        return plain(theta * (self.factor * ratio - self.factor + 1) ** (size / (size - 2)), size)


@dataclasses.dataclass(frozen=True)
class YarnRopeScaling:
    """YaRN (`rope_type` "yarn"): slow frequencies are divided by the factor, fast ones stay, a ramp between.

    Attributes:
        factor: What slow frequencies are divided by.
        original_max_length: Positions that the network was made for before stretching.
        attention_factor: What cosines and sines are multiplied by.
        beta_fast: Pairs of features that turn more often than this in the old length stay.
        beta_slow: Those that turn less often are divided whole.
        truncate: Whether the ramp's ends are rounded to whole pairs of features.
    """

    factor: float
    original_max_length: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def scaled(self, theta: float, size: int, length: int | None) -> np.ndarray:
        """As `RopeScaling.scaled`."""
        first, last = self._pair(self.beta_fast, theta, size), self._pair(self.beta_slow, theta, size)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        ramp = (np.arange(size // 2) - first) / (last - first if last != first else 0.001)
        kept = 1 - np.clip(ramp, 0, 1)
        return plain(theta, size) * (kept + (1 - kept) / self.factor)

    def _pair(self, turns: float, theta: float, size: int) -> float:
        """The pair of features, as a fraction, that turns so often in the old length."""
        return size * math.log(self.original_max_length / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclasses.dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (`rope_type` "longrope"): each frequency is divided by a factor of its own, of one of two lists.

    Attributes:
        short_factors: Up to the old length.
        long_factors: For networks that are used beyond it.
        original_max_length: The old length.
        attention_factor: What cosines and sines are multiplied by, at any length.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_length: int
    attention_factor: float

    def scaled(self, theta: float, size: int, length: int | None) -> np.ndarray:
        """As `RopeScaling.scaled`."""
        is_long = (length or 0) > self.original_max_length
        return plain(theta, size) / np.array(self.long_factors if is_long else self.short_factors)


@dataclasses.dataclass(frozen=True)
class Llama3RopeScaling:
    """Llama 3's stretching of slow rotary frequencies (`rope_type` "llama3").

    Attributes:
        factor: What wavelengths longer than the old context are stretched by.
        low_freq_factor: Wavelengths above `original_max_length / low_freq_factor` are stretched whole.
        high_freq_factor: Wavelengths below `original_max_length / high_freq_factor` stay.
        original_max_length: Positions that the network was made for before stretching.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int
    attention_factor: float = dataclasses.field(default=1.0, init=False)

    def scaled(self, theta: float, size: int, length: int | None) -> np.ndarray:
        """As `RopeScaling.scaled`."""
        frequencies = plain(theta, size)
        # Turns within the old context: slow frequencies are divided by the factor, fast ones stay, a ramp between.
        turns = self.original_max_length * frequencies / (2 * np.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(ramp, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)
