"""torch + transformers beside jaxspec: plain and assisted greedy decoding of networks of the same shapes."""

import statistics
import time
from collections.abc import Iterator
from typing import Any

from harness import Bench, Line
from shapes import SEQUOIA_REPOSITORY

from jaxspec import plan, tree
from jaxspec.networks import TransformerConfig, to_hugging_face


def torch_lines(bench: Bench, device: str) -> Iterator[Line]:
    """Rounds of transformers on a device of torch, and the same of jaxspec.

    A round of an assisted generation is a chain of drafted tokens and one forward of the target. Random weights accept
    next to nothing, so ms a token is ms a round over what the published vector expects of that chain, for both.
    """
    import torch  # pyright: ignore[reportMissingImports] (the extra `torch`)

    bench.begin("torch: weights")
    target, assistant = _random(bench.shapes.target, device), _random(bench.shapes.draft, device)
    length = bench.shapes.chain_length
    assistant.generation_config.num_assistant_tokens = length
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0  # else a chain ends where the draft is unsure
    forwards: list[None] = []
    target.register_forward_hook(lambda *_: forwards.append(None))
    prompt = torch.tensor([bench.prompt], device=device)

    def run(limit: int, options: dict[str, Any]) -> tuple[float, int]:
        forwards.clear()
        start = time.perf_counter()
        with torch.inference_mode():
            target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                min_new_tokens=limit,
                max_new_tokens=limit,
                pad_token_id=0,
                **options,
            )
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start, len(forwards)

    def round_ms(options: dict[str, Any]) -> float:
        """As `Bench.rounds`."""
        short, long = bench.shapes.num_tokens
        run(short, options)
        times = []
        for _ in range(max(bench.shapes.repeats // 2, 1)):
            (short_s, short_rounds), (long_s, long_rounds) = run(short, options), run(long, options)
            times.append((long_s - short_s) / (long_rounds - short_rounds) * 1000)
        return statistics.median(times)

    bench.begin("torch: plain decoding")
    yield _line("plain", 1.0, round_ms({}), bench.plain(0.0).round_ms)
    bench.begin(f"torch: assisted generation, {length} tokens a round")
    chain = tree.chain(length)
    expected = plan.expected_tokens(chain, SEQUOIA_REPOSITORY.acceptance)
    theirs = round_ms({"assistant_model": assistant})
    yield _line(f"chain of {length}", expected, theirs, bench.drawn(SEQUOIA_REPOSITORY, chain, 0.0).round_ms)


def _random(config: TransformerConfig, device: str) -> Any:
    """transformers' network of these constants, its random weights drawn on the device."""
    import torch  # pyright: ignore[reportMissingImports] (the extra `torch`)
    from transformers import AutoModelForCausalLM, LlamaConfig

    with torch.device(device):
        settings = LlamaConfig.from_dict(to_hugging_face(config))
        return AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval()


def _line(method: str, tokens: float, theirs_ms: float, ours_ms: float) -> Line:
    return {
        "method": method,
        "torch_round_ms": theirs_ms,
        "jaxspec_round_ms": ours_ms,
        "tokens": tokens,
        "torch_ms_per_token": theirs_ms / tokens,
        "jaxspec_ms_per_token": ours_ms / tokens,
        "torch_over_jaxspec": theirs_ms / ours_ms,
    }
