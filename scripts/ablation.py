"""What each part of SpecBranch is worth: branches, H-RAD, the fork rule, the draft stage, epsilon and K.

    python scripts/ablation.py --prompts humaneval.jsonl gsm8k.jsonl --out ablation.json --plot ablation.png

Every arm decodes the same prompts; at temperature 0 all arms emit the same tokens, so that they differ in rounds and
in drafted tokens only. Times on two devices are simulated from the logged rounds (`jaxspec.simulate`), with the pair's
measured step times and with those of a device on which a target step takes the same time for any few tokens. Every
simulated round is charged all forwards that the real one takes, and its measured overhead.
"""

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jaxspec import decode, pairs, plan, records, simulate, verify
from jaxspec.catalogue import prompts
from jaxspec.cli.show import terminal
from jaxspec.decode.branches import widths
from jaxspec.decode.branches.cuts import KEEP_ALL, Confidence, Cut, HRad
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.measure import calibration
from jaxspec.networks import with_features
from jaxspec.pairs import heads
from jaxspec.plan import predictions
from jaxspec.plan.theory import renewal

console = Console(stderr=True)

BRANCHES = (1, 2, 3, 4, 6, 8)

EPSILON = 0.4
"""The threshold of arms without H-RAD, where none is given."""

EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Arm(NamedTuple):
    """A setting that is measured.

    Attributes:
        name: As in the table.
        decoder: The decoder.
        head: The head whose parameters it reads; None where it reads none.
    """

    name: str
    decoder: decode.Decoder
    head: heads.Head | None


def parts(pair: pairs.Pair, options: argparse.Namespace) -> Iterator[Arm]:
    """The whole method, and what is left of it without each of its parts."""
    head = _heads(pair, options)[0]
    whole, branches = _hrad(head, options), options.max_branches
    yield _arm(pair, options, "full", whole, branches, head)
    yield _arm(pair, options, "without branches", whole, 1, head)
    yield _arm(pair, options, "without H-RAD", _confidence(options), branches)
    yield _arm(pair, options, "without either", _confidence(options), 1)
    yield _arm(pair, options, "branches, nothing cut", KEEP_ALL, branches)
    yield _arm(pair, options, "PEARL", KEEP_ALL, 1)
    yield _arm(pair, options, "with the draft stage", whole, branches, head, has_draft_stage=True)
    yield _arm(pair, options, "top-k fork", whole, branches, head, fork=verify.TOP_K)


def epsilons(pair: pairs.Pair, options: argparse.Namespace) -> Iterator[Arm]:
    """The threshold, with H-RAD and by confidence alone."""
    head = _heads(pair, options)[0]
    for value in EPSILONS:
        yield _arm(pair, options, f"H-RAD, epsilon {value}", HRad(head.network, value), options.max_branches, head)
        yield _arm(pair, options, f"confidence, epsilon {value}", Confidence(value), options.max_branches)


def branches(pair: pairs.Pair, options: argparse.Namespace) -> Iterator[Arm]:
    """The most candidates of a fork, by confidence alone: k = floor(k_max (1 - confidence)) of them are tried."""
    for count in BRANCHES:
        yield _arm(pair, options, f"k_max = {count}", _confidence(options), count)


def features(pair: pairs.Pair, options: argparse.Namespace) -> Iterator[Arm]:
    """The number of feature layers: one arm for each head that was given."""
    for head in _heads(pair, options):
        cut = _hrad(head, options)
        yield _arm(pair, options, f"K = {head.network.num_features}", cut, options.max_branches, head)


def methods(pair: pairs.Pair, options: argparse.Namespace) -> Iterator[Arm]:
    """The methods that SpecBranch is compared with, at one length."""
    target, draft, length = pair.target, pair.draft, options.length
    yield Arm("SpS", decode.speculative(target, draft, length), None)
    yield Arm("AdaEDL", decode.adaedl(target, draft, length), None)
    yield Arm("PEARL", decode.pearl(target, draft, length), None)
    profile = pair.profile_at(options.temperature)
    if profile is not None:
        yield Arm("SEQUOIA", decode.sequoia(target, draft, plan.optimal_tree(profile.acceptance, length + 1)), None)


def specbranch(pair: pairs.Pair, options: argparse.Namespace) -> Iterator[Arm]:
    """SpecBranch by H-RAD where the pair has a head, also with the paper's width, and by the confidence alone."""
    if options.heads or pair.heads:
        head = _heads(pair, options)[0]
        yield _arm(pair, options, "SpecBranch", _hrad(head, options), options.max_branches, head)
        yield _arm(
            pair, options, "SpecBranch, adaptive width", _hrad(head, options), options.max_branches, head, "adaptive"
        )
    yield _arm(pair, options, "SpecBranch, confidence", _confidence(options), options.max_branches)


ARMS = {
    "parts": parts,
    "epsilons": epsilons,
    "branches": branches,
    "features": features,
    "methods": methods,
    "specbranch": specbranch,
}


def _heads(pair: pairs.Pair, options: argparse.Namespace) -> list[heads.Head]:
    if options.heads:
        return [heads.load(folder) for folder in options.heads]
    head = pair.hrad_at(options.temperature)
    if head is None:
        raise SystemExit(f"{pair.name} has no H-RAD head; give --heads (jaxspec train-hrad makes them).")
    return [head]


def _arm(
    pair: pairs.Pair,
    options: argparse.Namespace,
    name: str,
    cut: Cut,
    branches: int,
    head: heads.Head | None = None,
    width: str | None = None,
    **more: Any,
) -> Arm:
    target = pair.target if head is None else with_features(pair.target, head.network.num_features)
    tried = widths.width_of(width or options.width)
    return Arm(name, branch_decoder(target, pair.draft, options.length, branches, cut, width=tried, **more), head)


def _hrad(head: heads.Head, options: argparse.Namespace) -> HRad:
    return HRad(head.network, head.epsilon if options.epsilon is None else options.epsilon)


def _confidence(options: argparse.Namespace) -> Confidence:
    return Confidence(EPSILON if options.epsilon is None else options.epsilon)


def measure(arm: Arm, pair: pairs.Pair, encoded: list[list[int]], options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table: the measures of all prompts together, and what one device and two would give."""
    params = pair.params if arm.head is None else {**pair.params, "hrad": arm.head.params}
    log = simulate.log_rounds(
        arm.decoder,
        params,
        encoded,
        key=jax.random.key(options.seed),
        max_new_tokens=options.max_new_tokens,
        sampling=decode.Sampling(options.temperature),
        stop_ids=pair.stop_ids,
    )
    rounds = [entry for row in log.rounds for entry in row]
    record: dict[str, Any] = {"arm": arm.name}
    if isinstance(arm.decoder, BranchDecoder):
        drafter = arm.decoder.drafter
        record |= {"max_branches": drafter.max_branches, "epsilon": getattr(drafter.cut, "epsilon", None)}
        record |= {"width": type(drafter.width).__name__}
    record |= log.stats.summary()
    record |= {f"simulated_{name}": value for name, value in _simulated(rounds, pair, options).items()}
    return record


def _simulated(rounds: list[simulate.Round], pair: pairs.Pair, options: argparse.Namespace) -> dict[str, float]:
    tables = {f"flat_c{c:g}": simulate.flat_times(30.0, c) for c in options.c}
    profile = pair.profile_at(options.temperature)
    if profile is not None:
        tables["machine"] = simulate.profile_times(profile)
    overhead = _overhead(pair, options)
    return {
        f"{name}_{count}": simulate.simulate(rounds, times, num_devices=count, overhead_ms=overhead).speedup
        for name, times in tables.items()
        for count in (1, 2)
    }


def _overhead(pair: pairs.Pair, options: argparse.Namespace) -> float:
    """Milliseconds that every simulated round is charged beyond its forwards."""
    if options.overhead_ms is not None:
        return options.overhead_ms
    profile = pair.profile_at(options.temperature)
    if profile is None:
        raise SystemExit(f"{pair.name} has no profile with a round's overhead: give --overhead-ms (jaxspec measure).")
    return profile.overhead_ms


def predict(
    records: list[dict[str, Any]], pair: pairs.Pair, encoded: list[list[int]], options: argparse.Namespace
) -> None:
    """Adds to the branch decoders' records what `theory.renewal` expects of a cut by confidence on these prompts."""
    profile = pair.profile_at(options.temperature)
    if profile is None:
        raise SystemExit(f"--predict: {pair.name} has no profile with the acceptance by rank (jaxspec measure).")
    table = calibration.measured(
        pair.target,
        pair.draft,
        pair.params,
        encoded,
        key=jax.random.key(options.seed),
        max_new_tokens=options.max_new_tokens,
        sampling=decode.Sampling(options.temperature),
        stop_ids=pair.stop_ids,
        batch_size=min(len(encoded), 8),
    )
    if table is None:
        raise SystemExit("--predict: these prompts are too few to say how good the draft's confidence is.")
    acceptance = predictions.mean_acceptance(profile)
    for record in records:
        if "max_branches" in record:
            setting = renewal.forking(table, acceptance, record["max_branches"], record["epsilon"] or 0.0)
            record["predicted_tokens"] = renewal.tokens(setting, options.length)
            record["predicted_rollback"] = renewal.rollback(setting, options.length)


def show(records: list[dict[str, Any]]) -> None:
    """What was measured, and what was simulated."""
    results = terminal.results_console()
    measured = Table("arm", "tokens / round", "run", "rollback path", "all", "ends p/b/s", "hits of labels")
    for record in records:
        tally, ends, hits = record.get("tally", {}), "", ""
        if tally:
            ends = "/".join(str(tally[name]) for name in ("pending_rejected", "branch_rejected", "survived"))
            hits = " ".join(f"{hit}/{count}" for hit, count in zip(tally["hits"], tally["labels"], strict=True))
        places = {"tokens_per_round": 3, "mean_accepted_run": 2, "rollback_path": 3, "rollback_all": 3}
        numbers = (f"{record[name]:.{count}f}" for name, count in places.items())
        measured.add_row(record["arm"], *numbers, ends, hits)
    results.print(measured)
    keys = [key for key in records[0] if key.startswith("simulated_")]
    simulated = Table(
        "arm", *(key.removeprefix("simulated_") for key in keys), title="simulated speedup, 1 device and 2"
    )
    for record in records:
        simulated.add_row(record["arm"], *(f"{record[key]:.2f}" for key in keys))
    results.print(simulated)


def plot(records: list[dict[str, Any]], file: str) -> None:
    """Tokens a round and rollback against epsilon, with H-RAD and without."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    series = [("H-RAD", "H-RAD", "tokens_per_round", "rollback_path", "o")]
    series += [("confidence", "confidence alone", "tokens_per_round", "rollback_path", "s")]
    if any("predicted_tokens" in record for record in records):
        series += [("confidence", "confidence, by renewal", "predicted_tokens", "predicted_rollback", "")]
    for prefix, label, *keys, marker in series:
        chosen = [record for record in records if record["arm"].startswith(f"{prefix}, epsilon")]
        values = [float(record["arm"].rsplit(" ", 1)[1]) for record in chosen]
        for axis, key in zip(axes, keys, strict=True):
            style = {"marker": marker} if marker else {"linestyle": "--", "color": "gray"}
            axis.plot(values, [record[key] for record in chosen], label=label, **style)
    for axis, title in zip(axes, ("tokens a round", "rollback on the path"), strict=True):
        axis.set(xlabel="epsilon", title=title)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(file, dpi=150)


def main() -> None:
    """Runs every arm that was asked for and writes one JSON."""
    options = parse()
    pair = pairs.load(options.pair, **({} if options.draft_layers is None else {"draft_layers": options.draft_layers}))
    encoded = [
        prompts.encode(pair, prompt, options.prompt_tokens)
        for file in options.prompts
        for prompt in _read(file, options)
    ]
    chosen = [arm for name in options.arms for arm in ARMS[name](pair, options)]
    measured = [measure(arm, pair, encoded, options) for arm in track(chosen, "arms", console=console)]
    if options.predict:
        predict(measured, pair, encoded, options)
    show(measured)
    records.save_result(options.out, vars(options) | {"overhead_ms": _overhead(pair, options)}, arms=measured)
    if options.plot:
        plot(measured, options.plot)


def _read(file: str, options: argparse.Namespace) -> list[prompts.Prompt]:
    """The first prompts of a file, of the category where its prompts have one."""
    chosen = [one for one in prompts.read(file) if options.category is None or one.task in ("", options.category)]
    return chosen[: options.num_prompts]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["parts"], help="sets of settings (default parts)")
    parser.add_argument("--prompts", nargs="+", required=True, help="JSON lines")
    parser.add_argument("--category", help="only prompts of this one")
    parser.add_argument("--num-prompts", type=int, default=10, help="of each file")
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="prompts are cut to so many")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--pair", default=pairs.DEFAULT)
    parser.add_argument("--draft-layers", type=int, help="the draft is the target's first so many layers")
    parser.add_argument("--heads", nargs="+", help="H-RAD folders; by default the pair's for the temperature")
    parser.add_argument("--length", type=int, default=8, help="gamma")
    parser.add_argument("--max-branches", type=int, default=8)
    parser.add_argument(
        "--width", choices=("all", "adaptive"), default="all", help="candidates of a fork that are tried"
    )
    about = "of a simulated round beyond its forwards (default: as the pair's profile has it)"
    parser.add_argument("--overhead-ms", type=float, help=about)
    about = f"of all arms; by default each head has its own, and arms without H-RAD {EPSILON}"
    parser.add_argument("--epsilon", type=float, help=about)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--c", type=float, nargs="+", default=[8.0, 15.0], help="target step / draft step, simulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--predict", action="store_true", help="state what the renewal model expects of each cut, too")
    parser.add_argument("--out", required=True, help="JSON to write")
    parser.add_argument("--plot", help="PNG to write, of the epsilons")
    return parser.parse_args()


if __name__ == "__main__":
    main()
