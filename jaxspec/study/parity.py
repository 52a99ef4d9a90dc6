"""Whether greedy decoding by a method gives the very tokens of plain decoding, and by how much it misses them if not.

In float32 it must. In bfloat16 a product over n tokens rounds differently from one over 1, so that a near-tie may fall
the other way: a fork is then legitimate where the target's logits of the two tokens are as close as that rounding.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import base, cache, decode, sampling
from jaxspec.base import Context, Model, Params, Progress
from jaxspec.decode import Decoder
from jaxspec.decode import state as states
from jaxspec.decode.request import Asked, checked


class Fork(NamedTuple):
    """The first place where a method's greedy text leaves the plain one.

    Attributes:
        prompt: Index of the prompt.
        position: Index of the new token.
        plain: Token of plain decoding, or -1 where it had ended.
        token: Token of the method, or -1 where it had ended.
        gap: How far the target's logit of the plain token lies above the other's (NaN where one had ended).
    """

    prompt: int
    position: int
    plain: int
    token: int
    gap: float


class Parity(NamedTuple):
    """Greedy texts of a method against plain decoding.

    Attributes:
        prompts: Prompts compared.
        tokens: New tokens of plain decoding.
        first_forks: One for each prompt whose texts differ.
    """

    prompts: int
    tokens: int
    first_forks: tuple[Fork, ...]

    @property
    def forks(self) -> int:
        """Prompts whose texts differ."""
        return len(self.first_forks)


def greedy(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    **asked: Any,
) -> Parity:
    """The parity of a method with plain decoding at temperature 0, one prompt at a time; arguments as for `texts`."""
    target, _ = decoder.models["target"]
    plain, own = (texts(method, params, prompts, **asked) for method in (decode.autoregressive(target), decoder))
    return compare(target, params["target"], prompts, plain, own, **asked)


def texts(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    progress: Progress | None = None,
    **asked: Any,
) -> list[np.ndarray]:
    """The greedy text of each prompt: its new tokens.

    Args:
        decoder: The method.
        params: Parameters by model name.
        prompts: Lists of token ids, decoded one after another.
        progress: Told after each prompt.
        **asked: As for `decode.generate`; `max_new_tokens` must be among them.
    """
    found = []
    for index, prompt in enumerate(prompts):
        generation = decode.generate(decoder, params, [prompt], key=jax.random.key(0), logprobs=False, **asked)
        found.append(generation.tokens[0])
        if progress is not None:
            progress("parity", index + 1, len(prompts))
    return found


def compare(
    target: Model,
    params: Params,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[np.ndarray],
    own: Sequence[np.ndarray],
    **asked: Any,
) -> Parity:
    """Where a method's texts leave the plain ones.

    Args:
        target: The target, which gives the logits at a fork.
        params: Its parameters.
        prompts: Lists of token ids.
        plain: Texts of plain decoding, as from `texts`.
        own: Those of the method.
        **asked: What they were asked for: options that act on logits are in the gap.
    """
    forks = []
    for index, (prompt, *both) in enumerate(zip(prompts, plain, own, strict=True)):
        longest = max(map(len, both))
        expected, found = (np.append(text, [decode.PADDING] * (longest - len(text))) for text in both)
        differs = np.flatnonzero(expected != found)
        if not differs.size:
            continue
        position = int(differs[0])
        wanted, token, gap = int(expected[position]), int(found[position]), np.nan
        if decode.PADDING not in (wanted, token):
            logits = _adjusted_logits(target, params, prompt, expected[:position].tolist(), **asked)
            gap = float(logits[wanted] - logits[token])
        forks.append(Fork(index, position, wanted, token, gap))
    return Parity(len(prompts), sum(int((text != decode.PADDING).sum()) for text in plain), tuple(forks))


def next_logits(model: Model, params: Params, tokens: Sequence[int]) -> np.ndarray:
    """`[V]` float32 logits after a text, read by the model in one forward."""
    size = cache.bucket(len(tokens))
    padded = np.zeros(size, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(_last_logits(model, params, jnp.asarray(padded), jnp.int32(len(tokens) - 1)))


def _adjusted_logits(
    target: Model, params: Params, prompt: Sequence[int], new: Sequence[int], **asked: Any
) -> np.ndarray:
    """`[V]` float32 logits after a prompt and new tokens, with what was asked for that acts on them."""
    text = [*prompt, *new]
    wanted = Asked(**{"max_new_tokens": 1, **asked})
    request = checked(decode.autoregressive(target), {"target": params}, [prompt], jax.random.key(0), wanted)
    row = jax.tree.map(lambda leaf: leaf[0], request.rows(len(text)))
    row = row._replace(tokens=jnp.asarray(text, jnp.int32), num_tokens=jnp.int32(len(text)))
    read = states.reading(row, target.vocab_size)
    return np.asarray(sampling.adjust(read.options, jnp.asarray(next_logits(target, params, text))))


@functools.partial(jax.jit, static_argnames="model")
def _last_logits(model: Model, params: Params, tokens: jax.Array, last: jax.Array) -> jax.Array:
    size = tokens.shape[0]
    nothing = Context(model.empty(1), jnp.zeros((), jnp.int32))
    causal = jnp.tril(jnp.ones((size, size), bool))
    positions = jnp.arange(size, dtype=jnp.int32)
    output = base.forward(model, params, tokens, positions, nothing, model.empty(size), 0, causal)
    return output.logits[last].astype(jnp.float32)


def entries(results: Mapping[str, Parity], names: Sequence[str]) -> dict[str, Any]:
    """The results of `check` as entries for JSON: those of all methods, then each one's.

    Args:
        results: By method.
        names: Of the prompts, as their file has them.
    """

    def of(parity: Parity) -> dict[str, Any]:
        forks = [fork._asdict() | {"id": names[fork.prompt]} for fork in parity.first_forks]
        return {"forks": parity.forks, "prompts": parity.prompts, "tokens": parity.tokens, "first_forks": forks}

    by_method = {method: of(parity) for method, parity in results.items()}
    first_forks = [{"method": method} | fork for method, entry in by_method.items() for fork in entry["first_forks"]]
    any_method = next(iter(by_method.values()))
    return any_method | {"forks": len(first_forks), "first_forks": first_forks, "by_method": by_method}
