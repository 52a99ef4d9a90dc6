"""The command `jaxspec generate`: a prompt, decoded while it is written."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxspec.catalogue import registry
from jaxspec.catalogue.choosing import choose, implied
from jaxspec.cli import options, values
from jaxspec.cli.show import terminal, text
from jaxspec.pairs.texts import TextStream

if TYPE_CHECKING:
    from jaxspec.decode import Chunk, Info


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "generate",
        "Decode a prompt; the text is written while it is decoded.",
        "With --json, stats.seconds has the compiling in it.\n\n"
        'example: jaxspec generate "Why is the sky blue?" --tree k-ary:2x3 --max-new-tokens 64 --show',
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from stdin, less one final newline")
    parser.add_argument("--raw", action="store_true", help="take the prompt as it is, without the chat template")
    parser.add_argument(
        "--show", action="store_true", help="in a terminal, colour accepted draft tokens and the target's own"
    )
    options.add_models(parser)
    options.add_sampling(parser, 128)
    options.add_text_options(parser)
    group = parser.add_argument_group("texts")
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the text in front of this; may be given several times",
    )
    group.add_argument(
        "--num-samples",
        type=values.integer(1, 4096),
        default=1,
        metavar="N",
        help="texts of the prompt, which is read once (default %(default)s)",
    )
    group = parser.add_argument_group("method")
    group.add_argument(
        "--method",
        choices=registry.NAMES,
        help=f"default: {_implied()}; otherwise auto",
    )
    options.add_shape(group)


def run(args: argparse.Namespace) -> int:
    if args.show and args.json:
        raise ValueError("--show colours the streamed text, but with --json none is: leave one of them out")
    given = [option for option in registry.OPTIONS if getattr(args, option) is not None]
    method = args.method or implied(given)
    asked = options.asked(args, (method,))
    TextStream(str, args.stop)  # checked before anything is loaded
    prompt = sys.stdin.read().removesuffix("\n") if args.prompt == "-" else args.prompt
    pair = options.load_pair(args)
    prompt_ids = pair.encode(prompt, raw=args.raw)
    choice = choose(method, asked, pair)

    import jax

    from jaxspec import decode
    from jaxspec.decode import stats

    request: dict[str, Any] = {
        "key": jax.random.key(args.seed),
        "max_new_tokens": args.max_new_tokens,
        "min_new_tokens": args.min_new_tokens,
        "sampling": options.sampling(args, pair),
        "stop_ids": pair.stop_ids,
        "draft_temperature": args.draft_temperature,
        "num_samples": args.num_samples,
    }
    decoder, params = choice.decoder(pair), pair.params_at(args.temperature)
    samples = [text.Sample(pair.decode, args.stop) for _ in range(args.num_samples)]
    if not args.json:
        text.stream(decode.stream(decoder, params, [prompt_ids], **request), samples, args.show)
        return _checked(samples)
    start = time.perf_counter()
    if args.stop:  # looked for round by round
        reports = list(_reports(decode.stream(decoder, params, [prompt_ids], **request), samples))
        measures = stats.of_rounds(decoder, reports)
    else:
        generation = decode.generate(decoder, params, [prompt_ids], **request, logprobs=False)
        measures = generation.stats
        for row, sample in enumerate(samples):
            sample.text.feed(generation.tokens[row, : generation.lengths[row]].tolist())
            sample.finish_reason = generation.finish_reason[row]
            sample.text.finish()
    seconds = time.perf_counter() - start
    entries = [
        {"text": sample.text.text, "token_ids": sample.text.tokens, "finish_reason": sample.finish_reason}
        for sample in samples
    ]
    config = options.common_config(args, pair) | choice.config()
    config |= {name: getattr(args, name) for name in ("raw", "stop", "num_samples")}
    several = {"samples": entries} if len(entries) > 1 else {}
    terminal.print_json(entries[0] | several | {"config": config, "stats": measures.summary() | {"seconds": seconds}})
    return _checked(samples)


def _reports(chunks: Iterable["Chunk"], samples: Sequence[text.Sample]) -> Iterator["Info"]:
    """What each round reports, as far as its tokens belong to the texts, which take them."""
    from jaxspec.decode import stats

    for chunk in chunks:
        info = chunk.info
        for row, sample in enumerate(samples):
            info = stats.cut(info, row, sample.take(chunk, row))
        yield info


def _checked(samples: Sequence[text.Sample]) -> int:
    """The exit status of texts that have been written.

    Raises:
        ValueError: One ended because the target gave no next token.
    """
    for sample in samples:
        if sample.finish_reason == "error":
            raise ValueError(text.broken(len(sample.text.tokens)))
    return 0


def _implied() -> str:
    """Which method each option is taken for, where none is named."""
    return ", ".join(f"{implied([option])} with {registry.word(option)}" for option in registry.OPTIONS)
