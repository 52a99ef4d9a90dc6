"""How a head decides, chosen for speed on rounds that it does not know: what its classes must win by, and epsilon.

Trained with balanced classes, a network says none or all about as often as partial, and each wrong one of these costs:
a continuation that is cut too early must be drafted again, one that is kept in vain is rolled back. So an offset is
added to the logits of none and of all. It goes into the bias of the last layer, and decoders need not know of it.
"""

import itertools
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from jaxspec.base import Params
from jaxspec.decode.branches import cuts
from jaxspec.train.hrad.collecting import Rounds

Key = TypeVar("Key")

EPSILONS = tuple(round(0.05 * step, 2) for step in range(1, 20))

OFFSETS = (-8.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0)
"""Of the logits of none and of all; with the first one a head hardly ever says so."""

SLACK = 0.03
"""Share of the estimated tokens a round that rolling less back may cost. Forks win about as much back, as measured on
SmolLM2: the estimate counts one candidate at each."""


class Setting(NamedTuple):
    """How a head decides.

    Attributes:
        epsilon: The confidence below which class partial cuts.
        none: Added to the logit of class none.
        all: Added to the logit of class all.
    """

    epsilon: float
    none: float = 0.0
    all: float = 0.0


class Estimate(NamedTuple):
    """What a cut gives.

    Attributes:
        tokens_per_round: By renewal; see `tokens_per_round`.
        rollback: Share of the pending tokens that do not stand.
    """

    tokens_per_round: float
    rollback: float


class Settings(NamedTuple):
    """Chosen by one rule: the least rollback among those that cost at most `SLACK` of the best tokens a round.

    Attributes:
        head: The head's.
        argmax: The head's without offsets.
        confidence: The threshold of the confidence alone.
    """

    head: Setting
    argmax: Setting
    confidence: float


def confidence_counts(confidence: np.ndarray, epsilon: float) -> np.ndarray:
    """`[n]` tokens in front of the first of `[n, G]` confidences below epsilon; see `hrad.first_below`."""
    is_low = confidence[:, :-1] < np.float32(epsilon)
    return np.where(is_low.any(1), is_low.argmax(1), confidence.shape[1] - 1)


def decided(logits: np.ndarray, setting: Setting) -> np.ndarray:
    """`[n]` classes from `[n, 3]` logits."""
    return (logits + np.array([setting.none, 0.0, setting.all])).argmax(-1)


def kept_by_head(logits: np.ndarray, confidence: np.ndarray, setting: Setting) -> np.ndarray:
    """`[n]` pending tokens that a head keeps, as `hrad.HRad` does, from `[n, 3]` logits and `[n, G]` confidence."""
    classes = decided(logits, setting)
    soft = confidence_counts(confidence, setting.epsilon)
    return np.where(classes == cuts.NONE, 0, np.where(classes == cuts.ALL, confidence.shape[1] - 1, soft))


def acceptance(num_accepted: np.ndarray, length: int) -> float:
    """Accepted tokens over tested ones, of continuations of G = `length` tokens, G - 1 of them pending."""
    tested = np.minimum(num_accepted + 1, length - 1).sum()  # the rejected token is tested too
    return float(num_accepted.sum() / max(tested, 1))


def tokens_per_round(kept: np.ndarray, num_accepted: np.ndarray, length: int) -> float:
    """Tokens a round of a branch decoder that keeps so much of each continuation: a renewal estimate.

    A round with `kept` pending tokens, of which `num_accepted` would stand, emits one more than the smaller of the two.
    Its branch survives if it was cut before they end; the next round then has pending tokens too. Otherwise it has
    none, emits one token, and its fork survives with the mean acceptance. Further candidates are not counted, so that
    the estimate is low where many are tried.

    Args:
        kept: `[n]` pending tokens, 0 to G - 1.
        num_accepted: `[n]` of the G - 1 tokens of the whole continuation.
        length: G.
    """
    alpha = acceptance(num_accepted, length)
    at_the_end = np.where(num_accepted == length - 1, alpha, 0.0)
    survival = np.where(kept < num_accepted, 1.0, np.where(kept == num_accepted, at_the_end, 0.0)).mean()
    share = alpha / max(1.0 - survival + alpha, 1e-9)  # of the rounds that have pending tokens
    return float(share * (np.minimum(kept, num_accepted) + 1).mean() + 1.0 - share)


def estimate(kept: np.ndarray, rounds: Rounds) -> Estimate:
    """What keeping `[n]` pending tokens of the rounds' continuations gives."""
    stand = np.minimum(kept, rounds.num_accepted).sum()
    rollback = float(1.0 - stand / kept.sum()) if kept.sum() else 0.0
    return Estimate(tokens_per_round(kept, rounds.num_accepted, rounds.length), rollback)


def choose(logits: np.ndarray, rounds: Rounds) -> Settings:
    """The settings for rounds that the head was not trained on, from its `[n, 3]` logits there."""
    soft = {
        setting: kept_by_head(logits, rounds.confidence, setting)
        for setting in itertools.starmap(Setting, itertools.product(EPSILONS, OFFSETS, OFFSETS))
    }
    heads = {setting: estimate(count, rounds) for setting, count in soft.items()}
    plain = {setting: found for setting, found in heads.items() if setting.none == setting.all == 0.0}
    alone = {epsilon: estimate(confidence_counts(rounds.confidence, epsilon), rounds) for epsilon in EPSILONS}
    return Settings(_best(heads), _best(plain), _best(alone))


def settled(params: Params, setting: Setting) -> Params:
    """An MLP's parameters with the offsets in the bias of its last layer: the arg-max then is the decision."""
    last = str(len(params["layers"]) - 1)
    layer = params["layers"][last]
    bias = layer["bias"] + jnp.asarray([setting.none, 0.0, setting.all], layer["bias"].dtype)
    return {**params, "layers": {**params["layers"], last: {**layer, "bias": bias}}}


def _best(found: dict[Key, Estimate]) -> Key:
    """The key with the least rollback among those with nearly the most tokens a round; the last of equal ones."""
    enough = (1.0 - SLACK) * max(one.tokens_per_round for one in found.values())
    able = [key for key in reversed(found) if found[key].tokens_per_round >= enough]
    return min(able, key=lambda key: found[key].rollback)
