"""Conversations that a chat model holds with itself, with its distributions: training data for a draft.

A chat model that is given only the head of a user's turn writes the turn itself (Xu et al. 2024, arXiv 2406.08464), and
then its own answer. Every token is labelled as it is made, which saves the forward of a second pass: `label` of
distil_draft.py does that for text that exists. The model speaks the ChatML format; all rows have the same length, so
that no row of a batch waits for another.

    python scripts/self_chat.py --target model.gguf --seeds seeds.jsonl --out chats.npz --labels chats_labels

The seeds are JSON lines with `text`, the beginning of a user's turn, `is_whole` where the turn ends behind it, and
`weight`, how often it is drawn.
"""

import argparse
import dataclasses
import functools
import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

from jaxspec import decode, networks, sampling, training
from jaxspec.base import Params
from jaxspec.decode import loop
from jaxspec.decode import state as states
from jaxspec.decode.plain import Autoregressive
from jaxspec.decode.request import Asked, checked

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"
END = "<|im_end|>"

console = Console(stderr=True)


class Memory(NamedTuple):
    """What a conversation carries beside its text.

    Attributes:
        labels: `[S, k]` each, after every token.
        is_answer: `[]` bool, the assistant speaks.
        num_spoken: `[]` int32 tokens of this turn.
        num_forced: `[]` int32 tokens of the next turn's head that are still to be written.
        limit: `[]` int32 tokens after which a user's turn is ended.
    """

    labels: training.Labels
    is_answer: jax.Array
    num_spoken: jax.Array
    num_forced: jax.Array
    limit: jax.Array


@dataclasses.dataclass(frozen=True)
class SelfChat(Autoregressive):
    """A decoder that speaks for both sides and keeps the most probable tokens of each step.

    Attributes:
        target: The chat model.
        heads: What is written between two turns: in front of the user's, in front of the assistant's.
        end: The token that ends a turn.
        count: k.
        user_temperature: Of the user's turns; the assistant's is the row's.
        user_limits: Least and most tokens of a user's turn, drawn for each row.
        answer_limit: Most tokens of an answer.
    """

    heads: tuple[tuple[int, ...], tuple[int, ...]]
    end: int
    count: int = 32
    user_temperature: float = 0.8
    user_limits: tuple[int, int] = (40, 160)
    answer_limit: int = 160

    def init(self, params: dict[str, Params], row: decode.Row) -> decode.State:
        """A conversation in the user's turn, or at the head of an answer where the prompt ends with one."""
        slots = row.tokens.shape[0]
        head = jnp.asarray(self.heads[1])
        tail = jax.lax.dynamic_slice_in_dim(row.tokens, row.num_tokens - len(head), len(head))
        labels = training.Labels(
            jnp.zeros((slots, self.count), jnp.int32), jnp.full((slots, self.count), jnp.nan, jnp.float16)
        )
        zero = jnp.zeros((), jnp.int32)
        limit = jax.random.randint(row.key, (), *self.user_limits)
        return states.init(self, row)._replace(memory=Memory(labels, (tail == head).all(), zero, zero, limit))

    def round(self, params: dict[str, Params], state: decode.State) -> tuple[decode.State, decode.Info]:
        """One forward, its labels, and the next token."""
        row, memory = state.row, state.memory
        output = self.forward(params, state)
        found = training.label(output.logits[0], self.count)
        labels = training.Labels(
            jnp.asarray(memory.labels.token_ids).at[row.root_position].set(found.token_ids),
            jnp.asarray(memory.labels.log_probs).at[row.root_position].set(found.log_probs.astype(jnp.float16)),
        )
        token, memory = self._speak(row, memory, output.logits[0])
        return self.commit(state._replace(memory=memory._replace(labels=labels)), output, token)

    def _speak(self, row: decode.Row, memory: Memory, logits: jax.Array) -> tuple[jax.Array, Memory]:
        """The next token: of the head, the end of a turn that is too long, or a draw."""
        assert row.options.temperature is not None  # main asks for a sampled kind
        temperature = jnp.where(memory.is_answer, row.options.temperature, self.user_temperature)
        probs = sampling.target_distribution(row.options._replace(temperature=temperature), logits)
        drawn = sampling.draw(states.round_key(row), probs)
        limit = jnp.where(memory.is_answer, self.answer_limit, memory.limit)
        spoken = jnp.where(memory.num_spoken >= limit, self.end, drawn)
        lengths = [len(head) for head in self.heads]
        sizes = jnp.asarray(lengths)
        heads = np.zeros((2, max(lengths)), np.int32)
        for number, head in enumerate(self.heads):
            heads[number, : len(head)] = head
        speaker = memory.is_answer.astype(jnp.int32)
        is_forced = memory.num_forced > 0
        token = jnp.where(is_forced, jnp.asarray(heads)[speaker, sizes[speaker] - memory.num_forced], spoken)
        is_over = ~is_forced & (token == self.end)
        next_speaker = jnp.where(is_over, 1 - speaker, speaker)
        memory = memory._replace(
            is_answer=next_speaker == 1,
            num_spoken=jnp.where(is_forced | is_over, 0, memory.num_spoken + 1),
            num_forced=jnp.where(is_over, sizes[next_speaker], jnp.maximum(memory.num_forced - 1, 0)),
        )
        return token.astype(jnp.int32), memory


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames="state")
def run(decoder: SelfChat, params: dict[str, Params], state: decode.State) -> decode.State:
    """Rounds until every row is full."""
    return jax.lax.while_loop(
        lambda state: (~state.row.is_finished).any(),
        lambda state: jax.vmap(lambda one: decoder.round(params, one))(state)[0],
        state,
    )


def main() -> None:
    """Writes a completions file and its labels, batch by batch; goes on behind what is there."""
    options = parse()
    model, params = networks.load(options.target)
    tokenizer = networks.load_tokenizer(options.target)
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    heads = tuple(encode("\n" + USER)), tuple(encode("\n" + ASSISTANT))
    (end,) = encode(END)
    decoder = SelfChat(model, heads, end)

    def whole(is_whole: bool) -> str:
        return END + "\n" + ASSISTANT if is_whole else ""

    seeds = [json.loads(line) for line in Path(options.seeds).read_text().splitlines()]
    prompts = [encode(SYSTEM + USER + seed["text"] + whole(seed["is_whole"])) for seed in seeds]
    fits = [len(prompt) + decoder.answer_limit // 2 <= options.length for prompt in prompts]
    console.print(f"{len(seeds)} seeds, of which {fits.count(False)} leave no room for half an answer and are not used")
    weights = np.array([seed["weight"] * fit for seed, fit in zip(seeds, fits, strict=True)])
    parts = Path(options.out).with_suffix(".parts")
    parts.mkdir(parents=True, exist_ok=True)
    for number in track(range(options.batches), "chats"):
        file = parts / f"{number:04d}.npz"
        if file.exists():
            continue
        rng = np.random.default_rng((options.seed, number))
        drawn = [prompts[index] for index in rng.choice(len(seeds), options.batch, p=weights / weights.sum())]
        temperatures = rng.choice([0.0, 0.0, 0.6, 0.9], options.batch)
        temperatures[0] = 0.9  # so that every batch is of the sampled kind
        asked = Asked(
            max_new_tokens=[options.length - len(prompt) for prompt in drawn],
            sampling=decode.Sampling(temperature=temperatures),
            logprobs=False,
            prefill_chunk=32,
            first_capacity=options.length,
        )
        key = jax.random.fold_in(jax.random.key(options.seed), number)
        request = checked(decoder, {"target": params}, drawn, key, asked)
        state = run(decoder, {"target": params}, loop.begin(decoder, {"target": params}, request))
        tokens = np.asarray(state.row.tokens)[:, : options.length]
        np.savez(
            file,
            tokens=tokens,
            prompt_lengths=[answer_start(row, heads[1]) for row in tokens],
            temperatures=temperatures.astype(np.float32),
            token_ids=np.asarray(state.memory.labels.token_ids)[:, : options.length],
            log_probs=np.asarray(state.memory.labels.log_probs)[:, : options.length],
        )
    join(parts, Path(options.out), Path(options.labels))


def answer_start(tokens: np.ndarray, head: tuple[int, ...]) -> int:
    """Tokens in front of the first answer; all where there is none."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(head))
    found = np.flatnonzero((windows == head).all(axis=1))
    return int(found[0]) + len(head) if len(found) else len(tokens)


def join(parts: Path, out: Path, labels: Path) -> None:
    """One completions file, and its labels, of all batches."""
    loaded = [np.load(file) for file in sorted(parts.glob("*.npz"))]
    tokens = np.concatenate([part["tokens"] for part in loaded])
    np.savez(
        out,
        tokens=tokens.ravel(),
        offsets=np.arange(len(tokens) + 1) * tokens.shape[1],
        prompt_lengths=np.concatenate([part["prompt_lengths"] for part in loaded]).astype(np.int32),
        temperatures=np.concatenate([part["temperatures"] for part in loaded]),
    )
    labels.mkdir(parents=True, exist_ok=True)
    for name in ("token_ids", "log_probs"):
        joined = np.concatenate([part[name] for part in loaded])
        np.save(labels / f"{name}.npy", joined.reshape(-1, joined.shape[-1]))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="the chat model: a Hugging Face folder, hub id or GGUF file")
    parser.add_argument("--seeds", required=True, help="JSON lines")
    parser.add_argument("--out", required=True, help="completions file to write")
    parser.add_argument("--labels", required=True, help="folder of labels to write")
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--batch", type=int, default=48, help="conversations decoded together")
    parser.add_argument("--length", type=int, default=512, help="tokens of a conversation")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
