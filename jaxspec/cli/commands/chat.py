"""The command `jaxspec chat`: a conversation in the terminal."""

import argparse
import contextlib
import importlib
import sys
from typing import Any

from jaxspec.catalogue import registry
from jaxspec.catalogue.choosing import choose, implied
from jaxspec.cli import options
from jaxspec.cli.show import text
from jaxspec.pairs import fetching

RESET, QUIT = "/reset", "/quit"


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "chat",
        "Talk with a pair; each answer knows what was said before.",
        f"{RESET} begins anew; {QUIT} or Ctrl-D ends; Ctrl-C stops an answer, and what was written of it is kept.\n"
        "Lines may also come from a pipe. All of the conversation is read anew for each answer.\n\n"
        "example: jaxspec chat --temperature 0.7",
    )
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before anything is said")
    parser.add_argument(
        "--show", action="store_true", help="in a terminal, colour accepted draft tokens and the target's own"
    )
    options.add_models(parser)
    options.add_sampling(parser, 512)
    options.add_text_options(parser)
    group = parser.add_argument_group("method")
    group.add_argument("--method", choices=registry.NAMES, help="default: as for generate")
    options.add_shape(group)


def run(args: argparse.Namespace) -> int:
    if args.json:
        raise ValueError("--json is not for a chat: jaxspec generate --json answers once")
    given = [option for option in registry.OPTIONS if getattr(args, option) is not None]
    method = args.method or implied(given)
    asked = options.asked(args, (method,))
    pair = options.load_pair(args)
    choice = choose(method, asked, pair)

    import jax

    from jaxspec import decode

    decoder, params = choice.decoder(pair), pair.params_at(args.temperature)
    request: dict[str, Any] = {
        "min_new_tokens": args.min_new_tokens,
        "sampling": options.sampling(args, pair),
        "stop_ids": pair.stop_ids,
        "draft_temperature": args.draft_temperature,
    }
    opening = [] if args.system is None else [{"role": "system", "content": args.system}]
    messages, turn = [*opening], 0
    most = getattr(pair.target, "max_length", None)
    while (said := _line()) is not None and said != QUIT:
        if said == RESET:
            messages = [*opening]
        if said in ("", RESET):
            continue
        asking = [*messages, {"role": "user", "content": said}]
        prompt = pair.encode(asking)
        limit = args.max_new_tokens if most is None else min(args.max_new_tokens, most - len(prompt))
        if limit < max(1, args.min_new_tokens):
            fetching.remark(f"the chat has {len(prompt)} tokens, of at most {most}: {RESET} begins anew")
            continue
        sample, key = text.Sample(pair.decode, ()), jax.random.fold_in(jax.random.key(args.seed), turn)
        turn += 1
        with contextlib.suppress(KeyboardInterrupt):
            chunks = decode.stream(decoder, params, [prompt], key=key, max_new_tokens=limit, **request)
            text.stream(chunks, [sample], args.show)
        if sample.finish_reason == "error":
            raise ValueError(text.broken(len(sample.text.tokens)))
        if sample.text.text:  # some templates take no empty turn
            messages = [*asking, {"role": "assistant", "content": sample.text.text}]
    return 0


def _line() -> str | None:
    """What is said next, without spaces around it; None at the end."""
    while True:
        try:
            if not sys.stdin.isatty():
                line = sys.stdin.readline()
                return line.strip() if line else None
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")  # lines can be edited, and called up again
            return input("> ").strip()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()
            fetching.remark(f"{QUIT} or Ctrl-D ends the chat")
