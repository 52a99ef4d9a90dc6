"""How tokens are drawn: what a user says, and the traced values of a row that it becomes.

Which options are in use is static (an unused one is None in `Options`, so the program does not contain it); their
values are traced and belong to a row.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.sampling.given import bias_of, rows, words_of
from jaxspec.sampling.past import Past, Penalties


@dataclasses.dataclass(frozen=True, eq=False)
class Sampling:
    """How the next token is drawn from the target. Each value is one for all rows, or one a row (`[B]`).

    Attributes:
        temperature: 0 is greedy: the arg-max, lowest id first. So is what is below float32's smallest normal number
            (1.2e-38), which devices take for 0.
        top_k: Keeps the k largest logits (all that tie with the k-th); 0 keeps all.
        top_p: Keeps the smallest set of largest probabilities whose sum reaches p (all that tie with its last); 1 keeps
            all. It reads the distribution that temperature and top-k leave.
        min_p: Drops tokens below `min_p` times the largest probability; 0 drops none.
        bias: Added to the logits before everything else: `{token: value}`, `[V]` or `[B, V]`; -inf bans a token.
        frequency_penalty: Subtracted from a token's logit for each time that the text holds it; below 0 favours it.
        presence_penalty: Subtracted once from the logit of a token that the text holds.
        repetition_penalty: Above 0. If the text holds a token, its logit is divided by this where it is above 0, and
            multiplied where it is not. It comes before the two others.
        penalise_prompt: Whether the prompt belongs to the text that the penalties read, beside the new tokens.
        bad_words: What is never emitted: token ids, and lists of ids that are not emitted one after another (the
            beginning may stand in the prompt). For all rows; or one list for each row, of words that are lists.

    Penalties and bans hold for every token on the path of a draft, so that they are as exact as without one. A profile
    does not foresee them: penalties make a draft's tokens less often right where they change what both models favour.
    """

    temperature: float | Sequence[float] | np.ndarray = 0.0
    top_k: int | Sequence[int] | np.ndarray = 0
    top_p: float | Sequence[float] | np.ndarray = 1.0
    min_p: float | Sequence[float] | np.ndarray = 0.0
    bias: Mapping[int, float] | np.ndarray | jax.Array | None = None
    frequency_penalty: float | Sequence[float] | np.ndarray = 0.0
    presence_penalty: float | Sequence[float] | np.ndarray = 0.0
    repetition_penalty: float | Sequence[float] | np.ndarray = 1.0
    penalise_prompt: bool | Sequence[bool] | np.ndarray = False
    bad_words: Sequence[int | Sequence[int]] | Sequence[Sequence[Sequence[int]]] = ()


GREEDY = Sampling()


class Options(NamedTuple):
    """`Sampling` as traced values; None for an option that no row uses.

    Attributes:
        temperature: `[]` float32, or None where every row and its draft are greedy.
        draft_temperature: `[]` float32; None exactly where `temperature` is.
        is_greedy: `[]` bool, `temperature` is 0; None where no row's is.
        is_greedy_draft: `[]` bool, `draft_temperature` is 0; None where no row's is.
        top_k: `[]` int32.
        top_p: `[]` float32.
        min_p: `[]` float32.
        bias: `[V]` float32.
        penalties: See there.
        bad_words: `[K, L]` int32, filled up with `past.ANYTHING` in front, and with words that are nothing else.
        min_new_tokens: `[]` int32, how many new tokens a row has before a stop id may be one.
        past: What the last three read of the text in front of a position. A row carries none; `decode.state.reading`
            and `behind` give the one of a position.
    """

    temperature: jax.Array | None = None
    draft_temperature: jax.Array | None = None
    is_greedy: jax.Array | None = None
    is_greedy_draft: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    bias: jax.Array | None = None
    penalties: Penalties | None = None
    bad_words: jax.Array | None = None
    min_new_tokens: jax.Array | None = None
    past: Past | None = None


def options(
    sampling: Sampling, draft_temperature: Any, batch: int, vocab_size: int, min_new_tokens: Any = 0
) -> Options:
    """The options of a batch, checked, each with a leading axis of B rows.

    Args:
        sampling: The user's values.
        draft_temperature: Like `Sampling.temperature`, for the draft; None: the target's.
        batch: B.
        vocab_size: V of the target.
        min_new_tokens: New tokens before a row may stop.

    Raises:
        ValueError: A value out of range or of another length than B.
    """
    temperature = rows("temperature", sampling.temperature, batch, np.float32, 0.0, math.inf)
    draft = temperature
    if draft_temperature is not None:
        draft = rows("draft_temperature", draft_temperature, batch, np.float32, 0.0, math.inf)
    top_k = rows("top_k", sampling.top_k, batch, np.int32, 0, 2**31 - 1)
    top_p = rows("top_p", sampling.top_p, batch, np.float32, 0.0, 1.0)
    if (top_p == 0).any():
        raise ValueError("top_p=0 keeps no token; give a value above 1.2e-38, or temperature=0 for greedy decoding.")
    min_p = rows("min_p", sampling.min_p, batch, np.float32, 0.0, 1.0)
    least = rows("min_new_tokens", min_new_tokens, batch, np.int32, 0, 2**31 - 1)
    always = Options(
        bias=bias_of(sampling.bias, batch, vocab_size),
        penalties=_penalties(sampling, batch),
        bad_words=words_of(sampling.bad_words, batch, vocab_size),
        min_new_tokens=jnp.asarray(least) if least.any() else None,
    )
    if not temperature.any() and not draft.any():  # filters never remove the arg-max
        return always
    return always._replace(
        temperature=jnp.asarray(temperature),
        draft_temperature=jnp.asarray(draft),
        is_greedy=None if temperature.all() else jnp.asarray(temperature == 0),
        is_greedy_draft=None if draft.all() else jnp.asarray(draft == 0),
        top_k=jnp.asarray(top_k) if top_k.any() else None,
        top_p=jnp.asarray(top_p) if (top_p < 1).any() else None,
        min_p=jnp.asarray(min_p) if min_p.any() else None,
    )


def _penalties(sampling: Sampling, batch: int) -> Penalties | None:
    """`[B]` each; None where no row has any."""
    frequency = rows("frequency_penalty", sampling.frequency_penalty, batch, np.float32, -math.inf, math.inf)
    presence = rows("presence_penalty", sampling.presence_penalty, batch, np.float32, -math.inf, math.inf)
    repetition = rows("repetition_penalty", sampling.repetition_penalty, batch, np.float32, 0.0, math.inf)
    if (repetition == 0).any():
        raise ValueError("repetition_penalty=0 is out of range: it must be above 0; 1 changes nothing.")
    counts_prompt = rows("penalise_prompt", sampling.penalise_prompt, batch, np.bool_, 0, 1)
    if not frequency.any() and not presence.any() and (repetition == 1).all():
        return None
    return Penalties(*map(jnp.asarray, (frequency, presence, repetition, counts_prompt)))
