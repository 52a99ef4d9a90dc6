"""Methods timed side by side: in one process all decode the same prompts, in turns, to equally many tokens.

What is timed is a whole generation, the reading of the prompt included: what a user waits for. Compiling is not: each
compiled shape is run once before. A speedup is over plain decoding of the same prompt, measured moments away from it.
"""

import dataclasses
import datetime
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxspec import decode, measure, records
from jaxspec.base import Model, Params, Progress
from jaxspec.decode import Decoder, Sampling, loop
from jaxspec.decode.request import Asked, checked
from jaxspec.measure import timing
from jaxspec.sampling import GREEDY
from jaxspec.study.bench_results import BASELINE, Output, Report, Sample, Steps

__all__ = ["BASELINE", "Arm", "Output", "Report", "Sample", "Steps", "run"]

UNCATEGORISED = "uncategorised"

_STEP_REPEATS = 5


class Arm(NamedTuple):
    """One way to decode, as it is timed.

    Attributes:
        generate: The output for a prompt, given with its index, which stands for its randomness.
        shape: Prompts of one shape run the same compiled programs.
        first: The same generation ended behind its first round; None for a peer, which counts no rounds.
    """

    generate: Callable[[int, Sequence[int]], Output]
    shape: Callable[[Sequence[int]], tuple[int, ...]] = lambda prompt: ()
    first: Callable[[int, Sequence[int]], Any] | None = None


def run(
    decoders: Mapping[str, Decoder],
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    categories: Sequence[str] | None = None,
    max_new_tokens: int = measure.NEW_TOKENS,
    sampling: Sampling = GREEDY,
    draft_temperature: float | None = None,
    stop_ids: Sequence[int] = (),
    repeats: int = 1,
    progress: Progress | None = None,
) -> Report:
    """The methods timed on the prompts, one prompt at a time.

    Args:
        decoders: By name; `BASELINE` must be among them.
        params: Parameters by model name.
        prompts: Lists of token ids.
        key: The key is consumed. A prompt's own is the same for every method and repeat.
        categories: Of the prompts; None or empty names: `UNCATEGORISED`.
        max_new_tokens: New tokens of each prompt.
        sampling: As for `decode.generate`.
        draft_temperature: As for `decode.generate`.
        stop_ids: Token ids that end a text. Without any, all methods emit exactly `max_new_tokens`.
        repeats: How often all of it is timed.
        progress: Told how far the work is.

    Raises:
        ValueError: No `BASELINE`, no prompts, not a category for each, less than one repeat, methods that emitted
            different numbers of tokens without stop ids, or anything that `decode.generate` refuses.
    """
    if BASELINE not in decoders:
        raise ValueError(f"{BASELINE!r} is not among {list(decoders)}: speedups are over decode.autoregressive(target)")
    options = (max_new_tokens, sampling, stop_ids, draft_temperature)
    arms = {name: decoder_arm(decoder, params, key, *options) for name, decoder in decoders.items()}
    labels = named_categories(categories, len(prompts))
    samples = interleaved(arms, prompts, repeats=repeats, progress=progress)
    if not len(stop_ids):
        check_equal_counts(samples)
    shapes = [arms[BASELINE].shape(prompt) for prompt in prompts]
    capacity, _ = Counter(shapes).most_common(1)[0][0]
    return Report(samples, labels, round_steps(decoders, params, capacity, progress))


def interleaved(
    arms: Mapping[str, Arm], prompts: Sequence[Sequence[int]], *, repeats: int = 1, progress: Progress | None = None
) -> dict[str, list[list[Sample]]]:
    """Samples by arm, prompt and repeat: prompt by prompt the arms take turns, each time in another order.

    Before, and not counted, every arm decodes the first prompt of each of its shapes.

    Args:
        arms: By name.
        prompts: Lists of token ids.
        repeats: Samples of each prompt.
        progress: Told how far the work is.

    Raises:
        ValueError: No prompts, or less than one repeat.
    """
    if not prompts or repeats < 1:
        raise ValueError(f"{len(prompts)} prompts, {repeats} repeats: at least one of each is needed")
    progress = progress or (lambda what, done, total: None)
    shapes = {name: [arm.shape(prompt) for prompt in prompts] for name, arm in arms.items()}
    work = [(name, index) for name in arms for index in first_of_each(shapes[name])]
    for done, (name, index) in enumerate(work):
        progress("warm-up", done, len(work))
        arms[name].generate(index, prompts[index])
    progress("warm-up", len(work), len(work))
    samples: dict[str, list[list[Sample]]] = {name: [[] for _ in prompts] for name in arms}
    for repeat in range(repeats):
        for index, prompt in enumerate(prompts):
            for name in rotated(list(arms), repeat + index):
                samples[name][index].append(_sample(arms[name], index, prompt))
            progress("bench", repeat * len(prompts) + index + 1, repeats * len(prompts))
    return samples


def decoder_arm(
    decoder: Decoder,
    params: dict[str, Params],
    key: jax.Array,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop_ids: Sequence[int] = (),
    draft_temperature: float | None = None,
) -> Arm:
    """A method as an arm; arguments as for `run`."""
    asked = Asked(
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_ids=stop_ids,
        draft_temperature=draft_temperature,
        logprobs=False,
    )

    def generate(index: int, prompt: Sequence[int], limit: int, capacity: int | None = None) -> decode.Generation:
        wanted = dataclasses.replace(asked, max_new_tokens=limit, first_capacity=capacity)
        return loop.run(decoder, params, checked(decoder, params, [prompt], jax.random.fold_in(key, index), wanted))

    def whole(index: int, prompt: Sequence[int]) -> Output:
        generation = generate(index, prompt, max_new_tokens)
        return Output(generation.tokens[0, : generation.lengths[0]], generation.stats)

    def shape(prompt: Sequence[int]) -> tuple[int, int]:
        request = checked(decoder, params, [prompt], key, asked)
        return request.capacity(decoder), request.last_capacity(decoder)

    def first(index: int, prompt: Sequence[int]) -> decode.Generation:
        return generate(index, prompt, 1, shape(prompt)[0])  # the capacity of the whole: the same programs

    return Arm(whole, shape, first)


def round_steps(
    decoders: Mapping[str, Decoder], params: dict[str, Params], capacity: int, progress: Progress | None = None
) -> dict[str, Steps]:
    """By method the forwards of one of its rounds, each measured alone at this capacity (see `timing.step_times`)."""
    widths = {name: decoder.forwards for name, decoder in decoders.items()}
    asked: dict[tuple[str, Model], set[int]] = {}
    for name, decoder in decoders.items():
        for role, of_role in widths[name].items():
            asked.setdefault((role, decoder.models[role][0]), set()).update(of_role)
    times = {}
    for done, ((role, model), sizes) in enumerate(asked.items()):
        if progress is not None:
            progress("step times", done, len(asked))
        times[role, model] = timing.step_times(
            model, params[role], sorted(sizes), capacity=capacity, repeats=_STEP_REPEATS
        )
    if progress is not None:
        progress("step times", len(asked), len(asked))

    def total(name: str, role: str) -> float:
        if role not in widths[name]:
            return 0.0
        of_role = times[role, decoders[name].models[role][0]]
        return sum(of_role[width] for width in widths[name][role])

    return {name: Steps(total(name, "draft"), total(name, "target")) for name in decoders}


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names, begun with another one at each turn."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def first_of_each(labels: Sequence[Hashable], count: int = 1) -> list[int]:
    """Places of the first `count` of each label, in order."""
    seen: Counter[Hashable] = Counter()
    chosen = []
    for place, label in enumerate(labels):
        seen[label] += 1
        if seen[label] <= count:
            chosen.append(place)
    return chosen


def named_categories(categories: Sequence[str] | None, num_prompts: int) -> list[str]:
    """A category's name for each prompt."""
    labels = [UNCATEGORISED] * num_prompts if categories is None else [label or UNCATEGORISED for label in categories]
    if len(labels) != num_prompts:
        raise ValueError(f"there are {len(labels)} categories for {num_prompts} prompts: one a prompt is needed")
    return labels


def check_equal_counts(samples: Mapping[str, Sequence[Sequence[Sample]]]) -> None:
    """Whether every arm emitted as many tokens for a prompt as the others.

    Raises:
        ValueError: One did not; names it.
    """
    for name, rows in samples.items():
        for index, (mine, theirs) in enumerate(zip(rows, next(iter(samples.values())), strict=True)):
            counts = {len(sample.output.tokens) for sample in (*mine, *theirs)}
            if len(counts) > 1:
                raise ValueError(
                    f"{name} emitted another number of tokens than the others for prompt {index}: {counts}"
                )


def environment(precision: str, command: str) -> dict[str, Any]:
    """What the numbers belong to: machine, versions, devices, precision, date, command line."""
    devices = [f"{device.device_kind} ({device.platform}:{device.id})" for device in jax.devices()]
    return {
        "machine": records.machine_description(),
        "versions": records.library_versions(),
        "devices": devices,
        "precision": precision,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": command,
    }


def _sample(arm: Arm, index: int, prompt: Sequence[int]) -> Sample:
    start = time.perf_counter()
    output = arm.generate(index, prompt)
    middle = time.perf_counter()
    if arm.first is None:
        return Sample(output, middle - start)
    arm.first(index, prompt)
    return Sample(output, middle - start, time.perf_counter() - middle)
