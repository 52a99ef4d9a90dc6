"""The command `jaxspec serve`: OpenAI's interface for a pair."""

import argparse
import importlib.util
import math
import os
import socket
from typing import TYPE_CHECKING, Any

from jaxspec.catalogue import registry
from jaxspec.catalogue.choosing import choose, implied
from jaxspec.cli import options, values
from jaxspec.cli.show import terminal
from jaxspec.pairs import fetching

if TYPE_CHECKING:
    from jaxspec.decode.slots import Slots

KEY_VARIABLE = "JAXSPEC_API_KEY"
NEEDED = ("prometheus_client", "starlette", "uvicorn")


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "serve",
        "Serve a pair by OpenAI's interface: chats, completions, models; /metrics for Prometheus, /health.",
        "Needs the extra: python -m pip install 'jaxspec[serve]'. Requests are decoded together, as they come.\n"
        "Beside OpenAI's fields: top_k, min_p, repetition_penalty, min_tokens, bad_words, stop_token_ids, ignore_eos\n"
        "and return_token_ids as in vLLM (penalties read the new tokens; with penalise_prompt the prompt too), and\n"
        "draft_temperature. A field that is not served is an error that names it. What was drafted and accepted for\n"
        'a request is in its "metrics", as in vLLM. A program is compiled for each doubling of the context and each\n'
        "group of options (sampling; filters; penalties, bias and bans; logprobs) when it is first needed; the first\n"
        f"two at the start. {KEY_VARIABLE} in the environment is the key that clients must say. Ctrl-C lets what runs\n"
        "finish. A chat that ends with the assistant is continued.\n"
        "With --json, one line on stdout says the address when it answers.\n\n"
        "example: jaxspec serve --port 8000 --method sequoia",
    )
    group = parser.add_argument_group("serving")
    group.add_argument("--host", default="127.0.0.1", help="address to listen at (default %(default)s: this machine)")
    for option, low, high, default, about in (
        ("--port", 0, 65535, 8000, "port; 0 takes a free one"),
        ("--slots", 1, 1024, 8, "rows that are decoded at once"),
        ("--context", 2, None, 2048, "tokens of a row, its prompt among them; at most what the target was made for"),
        ("--queue", 0, None, 256, "rows that may wait; beyond them a request is answered with 429"),
        ("--max-body", 1, None, 1 << 20, "bytes of a request's body"),
        ("--segment", 1, None, 4, "rounds between which rows join and text is sent"),
        ("--stop-seconds", 0, None, 30, "time that running requests have at the end"),
    ):
        kind = values.integer(low, high)
        group.add_argument(option, type=kind, default=default, metavar="N", help=f"{about} (default %(default)s)")
    about = "of requests that name none; the method is planned for it (default %(default)s)"
    group.add_argument("--temperature", type=values.number(0, math.inf), default=1.0, metavar="F", help=about)
    options.add_models(parser)
    group = parser.add_argument_group("method")
    group.add_argument("--method", choices=registry.NAMES, help="default: as for generate")
    options.add_shape(group)


def run(args: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"jaxspec serve needs {missing[0]}: python -m pip install 'jaxspec[serve]'")
    given = [option for option in registry.OPTIONS if getattr(args, option) is not None]
    method = args.method or implied(given)
    asked = options.asked(args, (method,))
    listener = _listener(args.host, args.port)  # tried before anything is loaded
    with listener:
        pair = options.load_pair(args)
        choice = choose(method, asked, pair)

        import uvicorn

        from jaxspec.decode.slots import Slots
        from jaxspec.server.app import Server, Settings
        from jaxspec.server.engine import Engine

        decoder, params = choice.decoder(pair), pair.params_at(args.temperature)
        context = min(args.context, getattr(pair.target, "max_length", None) or args.context)
        batch = Slots(decoder, params, args.slots, context)
        fetching.remark("compiling")
        _warm_up(batch)
        is_local = args.host in ("127.0.0.1", "::1", "localhost")
        key = os.environ.get(KEY_VARIABLE) or None
        hosts = ("127.0.0.1", "::1", "localhost") if is_local and key is None else None
        settings = Settings(pair.name, args.temperature, args.max_body, key, hosts)
        server = Server(pair, decoder, params, Engine(batch, args.segment, args.queue), settings)
        stop, quiet = {"timeout_graceful_shutdown": args.stop_seconds}, {"log_level": "warning", "log_config": None}
        config = uvicorn.Config(server.app(), server_header=False, **stop, **quiet)
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        if args.json:
            stated = choice.config() | {"slots": args.slots, "context": context}
            terminal.print_json({"url": url, "model": pair.name, "config": stated})
        fetching.remark(f"{pair.name} is served at {url}; Ctrl-C ends it")
        uvicorn.Server(config).run(sockets=[listener])
    return 2 if server.engine.error else 0


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"can't listen at {host} port {port}: {error}; choose others by --host and --port") from error


def _warm_up(batch: "Slots") -> None:
    """Compiles the programs of greedy and of sampled rows, in batches of all sizes."""
    import jax

    from jaxspec.decode import Sampling
    from jaxspec.decode.request import Asked, checked
    from jaxspec.decode.slots import sizes

    wanted = sizes(batch.num_slots)
    for temperature in (0.0, 1.0):
        rows = Asked(max_new_tokens=1, sampling=Sampling(temperature), logprobs=False, num_samples=sum(wanted))
        reading = batch.begin(checked(batch.decoder, batch.params, [[0, 0]], jax.random.key(0), rows))
        reading, samples = batch.read(reading), iter(range(sum(wanted)))
        for size in wanted:
            for _ in range(size):
                batch.join(reading, next(samples))
            batch.advance(1)
