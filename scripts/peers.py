"""jaxspec beside its peers: the same prompts, the same weights, in one process, in turns prompt by prompt.

    python scripts/peers.py --prompts spec_bench.jsonl --per-category 10 [--methods sequoia] [--out peers.json]

Peers, each with its settings in the JSON; one that is not installed is named and left out:

    torch                transformers + torch, plain decoding
    torch assisted …     its assisted generation with the pair's draft; `default` is its own settings (20 tokens, ended
                         where the draft is less than 0.4 sure), a number a constant chain of so many tokens
    torch lookup         its prompt lookup
    llama.cpp …          llama-cpp-python, plain decoding: the target's GGUF file as it is, and in float32

All emit equally many tokens: stop ids are off. At temperature 0 the texts are compared with ours.
"""

import argparse
import importlib.util
import itertools
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec import decode, networks, pairs, records
from jaxspec.catalogue import choosing, prompts
from jaxspec.cli.options import add_prompts, add_shape, asked
from jaxspec.cli.show import bench_tables, terminal
from jaxspec.cli.values import integer, methods, number, with_trees
from jaxspec.networks import Transformer
from jaxspec.pairs import fetching
from jaxspec.study import bench, bench_results
from jaxspec.study.bench import BASELINE, Arm, Output, Report

TORCH, ASSISTED, LOOKUP, LLAMA = "torch", "torch assisted", "torch lookup", "llama.cpp"


class Peer(NamedTuple):
    """A peer as it is timed, and its settings as the JSON states them."""

    arm: Arm
    config: dict[str, Any]


class Missing(Exception):
    """A peer that can't be run here; says why."""


def torch_peers(pair: pairs.Pair, args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Peer]]:
    """Plain, assisted and prompt-lookup generation of transformers.

    Args:
        pair: Whose weights they run.
        args: The command line's.
        folder: Where weights that are in no file can be written.
    """
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise Missing(f"{name} is not installed")
    import torch  # pyright: ignore[reportMissingImports] (the extra `torch`)
    from transformers import GenerationConfig

    torch.set_num_threads(args.threads)
    target = load_torch(weights(pair, "target", folder))
    sampled: dict[str, Any] = {"do_sample": False}
    if args.temperature:
        sampled = {"do_sample": True, "temperature": args.temperature, "top_k": 0}

    def peer(assistant: Any = None, settings: dict[str, Any] | None = None, **options: Any) -> Peer:
        def generate(index: int, prompt: Sequence[int]) -> Output:
            if settings is not None:
                assistant.generation_config.update(**settings)  # each time: a generation may leave some changed
            torch.manual_seed(args.seed + index)
            tokens = torch.tensor([list(prompt)])
            asked = GenerationConfig(max_new_tokens=args.max_new_tokens, pad_token_id=0, **sampled, **options)
            with torch.inference_mode():
                texts = target.generate(
                    tokens,
                    attention_mask=torch.ones_like(tokens),
                    generation_config=asked,
                    assistant_model=assistant,
                )
            return Output(texts[0, len(prompt) :].numpy())

        stated = {"dtype": "float32", "threads": args.threads}
        return Peer(Arm(generate), stated | sampled | options | (settings or {}))

    yield TORCH, peer()
    yield LOOKUP, peer(prompt_lookup_num_tokens=args.lookup_tokens)
    draft = load_torch(weights(pair, "draft", folder))
    for words in args.assistant_tokens.split(","):
        yield f"{ASSISTED} {words}", peer(draft, assistant_settings(words))


def assistant_settings(words: str) -> dict[str, Any]:
    """transformers' settings of an assistant: its defaults, or a constant chain."""
    count, threshold = (20, 0.4) if words == "default" else (int(words), 0.0)
    return {
        "num_assistant_tokens": count,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": threshold,
    }


def load_torch(path: Path) -> Any:
    """transformers' model of a GGUF file or a Hugging Face folder in float32, which stops nowhere."""
    import torch  # pyright: ignore[reportMissingImports] (the extra `torch`)
    from transformers import AutoModelForCausalLM, GenerationConfig

    folder, options = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def weights(pair: pairs.Pair, role: str, folder: Path) -> Path:
    """The file or Hugging Face folder that a model of the pair was read from; one that is written where there is none.

    Raises:
        Missing: It was read from none, and can't be written as one.
    """
    source = pair.sources[role]
    for name, known in fetching.SOURCES.items():
        if source.startswith(known.file):
            return fetching.fetch(name)
    if Path(source).exists():
        return Path(source)
    model = getattr(pair, role)
    if not isinstance(model, Transformer) or model.kept_ids is not None:
        raise Missing(f"the {role}, {source}, is in no file that transformers reads")
    networks.save(folder / role, model, pair.params[role])
    return folder / role


def llama_peers(pair: pairs.Pair, args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Peer]]:
    """Plain decoding by llama.cpp of the target's GGUF file, as it is and in float32."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise Missing("llama-cpp-python is not installed")
    file = weights(pair, "target", folder)
    if file.suffix != ".gguf":
        raise Missing(f"the target, {file}, is no GGUF file")
    wide = folder / f"{file.stem}.float32.gguf"
    float32_gguf(file, wide)
    from llama_cpp import GGML_TYPE_F32, Llama  # pyright: ignore[reportMissingImports]

    for name, path in (("as quantised", file), ("float32", wide)):
        settings = {"n_ctx": args.prompt_tokens + args.max_new_tokens}
        settings |= {"n_threads": args.threads, "n_threads_batch": args.threads}
        if path is wide:
            settings |= {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
        model = Llama(str(path), verbose=False, seed=args.seed, **settings)

        def generate(index: int, prompt: Sequence[int], model: Any = model) -> Output:
            del index
            model.reset()  # else it keeps what the last text has in common with this prompt
            tokens = model.generate(list(prompt), temp=args.temperature, top_k=0, top_p=1.0, min_p=0.0)
            return Output(np.fromiter(itertools.islice(tokens, args.max_new_tokens), np.int32))

        yield f"{LLAMA} {name}", Peer(Arm(generate), {"file": path.name} | settings)


def available(pair: pairs.Pair, args: argparse.Namespace, folder: Path) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that can be run here, and why others can't."""
    found, missing = {}, {}
    for kind, peers in (("transformers", torch_peers), ("llama.cpp", llama_peers)):
        try:
            for name, peer in peers(pair, args, folder):
                found[name] = peer
        except Missing as reason:
            missing[kind] = str(reason)
            fetching.remark(f"{kind}: {reason}; what of it needs that is left out")
    return found, missing


def float32_gguf(source: Path, path: Path) -> None:
    """Writes a GGUF file again with all its tensors in float32."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ratios(report: Report, ours: Sequence[str]) -> dict[str, bench_results.Spread]:
    """How many times as fast as its counterpart ours is: plain over plain, speculative over assisted and lookup."""
    found = {}
    for name, peer in itertools.product(ours, report.samples):
        is_plain_peer = peer == TORCH or peer.startswith(LLAMA)
        if peer not in ours and (name == BASELINE) == is_plain_peer:
            found[f"{name} / {peer}"] = report.ratio(name, peer)
    return found


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_prompts(parser, None)
    count = integer(1)
    parser.add_argument("--per-category", type=count, metavar="N", help="how many prompts of each category")
    parser.add_argument("--prompt-tokens", type=count, default=128, metavar="N", help="default %(default)s")
    parser.add_argument("--repeats", type=count, default=1, metavar="N", help="default %(default)s")
    parser.add_argument("--max-new-tokens", type=count, default=128, metavar="N", help="default %(default)s")
    parser.add_argument("--temperature", type=number(0, 100), default=0.0, metavar="F", help="default %(default)s")
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help="default %(default)s")
    parser.add_argument("--pair", default=fetching.DEFAULT, metavar="P", help="default %(default)s")
    parser.add_argument("--draft-layers", type=count, metavar="N", help="draft with the target's first N layers")
    parser.add_argument("--methods", type=methods, default=("sequoia",), metavar="A,B", help="ours (default sequoia)")
    parser.add_argument("--assistant-tokens", default="default,5", metavar="A,B", help="(default %(default)s)")
    parser.add_argument("--lookup-tokens", type=count, default=10, metavar="N", help="default %(default)s")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--threads", type=count, default=cores, metavar="N", help="of the peers (default %(default)s)")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    add_shape(parser)
    return parser.parse_args(with_trees(argv))


def main(argv: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else list(argv)
    args = parse(words)
    ours = tuple(dict.fromkeys((BASELINE, *args.methods)))
    settled = asked(args, ours)
    chosen = prompts.read(args.prompts, args.num_prompts)
    if args.per_category:
        chosen = [chosen[place] for place in bench.first_of_each([one.task for one in chosen], args.per_category)]
    pair = pairs.load(args.pair, draft_layers=args.draft_layers)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]
    choices = {method: choosing.choose(method, settled, pair) for method in ours}
    decoders = {method: choice.decoder(pair) for method, choice in choices.items()}
    key, sampling, params = (
        jax.random.key(args.seed),
        decode.Sampling(args.temperature),
        pair.params_at(args.temperature),
    )
    arms = {
        name: bench.decoder_arm(decoder, params, key, args.max_new_tokens, sampling)
        for name, decoder in decoders.items()
    }
    configs = {method: choice.config() for method, choice in choices.items()}
    with tempfile.TemporaryDirectory() as folder, terminal.progress() as progress:
        peers, missing = available(pair, args, Path(folder))
        arms |= {name: peer.arm for name, peer in peers.items()}
        configs |= {name: peer.config for name, peer in peers.items()}
        samples = bench.interleaved(arms, encoded, repeats=args.repeats, progress=progress)
        bench.check_equal_counts(samples)
        capacity = arms[BASELINE].shape(max(encoded, key=len))[0]
        steps = bench.round_steps(decoders, params, capacity, progress)
    report = Report(samples, bench.named_categories([one.task for one in chosen], len(chosen)), steps)
    config = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    config |= {"categories": Counter(report.categories), "stop_ids": [], "dtype": "float32", "sources": pair.sources}
    show(report, config, ratios(report, ours))
    if args.out:
        environment = bench.environment("float32", shlex.join(["scripts/peers.py", *words]))
        environment["versions"] |= {name: metadata.version(name) for name in peer_packages()}
        result = bench_results.entries(report, configs) | {
            "ratios": {name: one._asdict() for name, one in ratios(report, ours).items()},
            "same_texts": {name: report.same_texts(name) for name in samples},
            "missing": missing,
            "environment": environment,
            "config": config | {"tree": None if args.tree is None else str(args.tree)},
        }
        records.write(args.out, result, indent=None)


def show(report: Report, config: Mapping[str, Any], found: Mapping[str, bench_results.Spread]) -> None:
    """Prints the tables, the ratios and, for greedy texts, how many are the very same as ours."""
    console = terminal.results_console()
    bench_tables.print_report(console, report, bench_tables.heading(config))
    for name, one in found.items():
        console.print(f"{name}: {one.median:.2f} x ({one.first_quartile:.2f}-{one.third_quartile:.2f})")
    if not config["temperature"]:
        for name in report.samples:
            same = report.same_texts(name)
            console.print(f"{name}: {same} of {len(report.categories)} texts are those of {BASELINE}")


def peer_packages() -> list[str]:
    """The peers' packages that are installed."""
    found = []
    for package, module in (("torch", "torch"), ("transformers", "transformers"), ("llama-cpp-python", "llama_cpp")):
        if importlib.util.find_spec(module) is not None:
            found.append(package)
    return found


if __name__ == "__main__":
    main()
