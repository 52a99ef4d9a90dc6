"""Which setting SpecBranch should have by its name: tokens a round and rollback of many settings, beside PEARL's.

    python scripts/branch_settings.py --prompts humaneval.jsonl gsm8k.jsonl --start 20 --count 8 --out settings.json

Only counts are read, which do not depend on the machine. A setting is good where it loses at most .8 of what PEARL
loses of the verified path (`rollback_path`) at no fewer tokens a round, at every temperature that is asked for.
"""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jaxspec import decode, pairs, records, verify
from jaxspec.catalogue import prompts
from jaxspec.plan import predictions
from jaxspec.plan.theory import renewal

ROLLBACK = 0.8
"""The most of PEARL's rollback that a good setting has."""

PEARL = {"method": "pearl"}


class Record(NamedTuple):
    """What one setting did at one temperature.

    Attributes:
        setting: Its options.
        temperature: Of target and draft.
        stats: All measures.
        predicted: Tokens a round that the profile predicts; None where nothing does.
    """

    setting: dict[str, Any]
    temperature: float
    stats: dict[str, Any]
    predicted: float | None

    @property
    def tokens(self) -> float:
        return self.stats["tokens_per_round"]

    @property
    def rollback(self) -> float:
        return self.stats["rollback_path"]


def settings(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All that are compared, PEARL first."""
    yield PEARL
    choices = itertools.product(
        options.forks, options.draft_stage, options.heads, options.max_branches, options.widths, options.epsilons
    )
    for fork, stage, head, max_branches, width, epsilon in choices:
        yield {
            "method": "specbranch",
            "max_branches": max_branches,
            "width": width,
            "epsilon": epsilon,
            "has_head": head == "yes",
            "has_draft_stage": stage == "yes",
            "fork": fork,
        }


def measured(
    pair: pairs.Pair, setting: dict[str, Any], temperature: float, encoded: list[list[int]], options: argparse.Namespace
) -> Record:
    """What a setting does on the prompts, decoded side by side."""
    decoder, params = _decoder(pair, setting, temperature, options.length)
    generation = decode.generate(
        decoder,
        params,
        encoded,
        key=jax.random.key(options.seed),
        max_new_tokens=options.max_new_tokens,
        sampling=decode.Sampling(temperature),
        stop_ids=pair.stop_ids,
        logprobs=False,
    )
    predicted = _predicted(pair, setting, temperature, options.length)
    return Record(setting, temperature, generation.stats.summary(), predicted)


def _decoder(
    pair: pairs.Pair, setting: dict[str, Any], temperature: float, length: int
) -> tuple[decode.Decoder, dict[str, Any]]:
    if setting == PEARL:
        return decode.pearl(pair.target, pair.draft, length), pair.params
    head = pair.hrad_at(temperature) if setting["has_head"] else None
    decoder = decode.specbranch(
        pair.target,
        pair.draft,
        None if head is None else head.network,
        length,
        setting["max_branches"],
        setting["epsilon"],
        fork=verify.RULES[setting["fork"]],
        has_draft_stage=setting["has_draft_stage"],
        width=setting["width"],
    )
    return decoder, pair.params if head is None else {**pair.params, "hrad": head.params}


def _predicted(pair: pairs.Pair, setting: dict[str, Any], temperature: float, length: int) -> float | None:
    """Tokens a round by the pair's profile: PEARL, and SpecBranch with a cut by confidence and the paper's width."""
    profile = pair.profile_at(temperature)
    if profile is None or profile.calibration is None:
        return None
    acceptance, calibration = predictions.mean_acceptance(profile), np.asarray(profile.calibration)
    if setting == PEARL:
        return renewal.tokens(renewal.forking(calibration, acceptance, 1, 0.0), length)
    if setting["has_head"] or setting["has_draft_stage"] or setting["width"] != "adaptive":
        return None
    forking = renewal.forking(calibration, acceptance, setting["max_branches"], setting["epsilon"])
    return renewal.tokens(forking, length)


def table_of(found: list[Record]) -> Table:
    """Each setting beside PEARL at its temperature."""
    table = Table("T", "setting", "tokens / round", "of PEARL's", "rollback path", "of PEARL's", "all", "predicted")
    baselines = {record.temperature: record for record in found if record.setting == PEARL}
    for record in found:
        pearl = baselines[record.temperature]
        tokens, rollback = record.tokens / pearl.tokens, record.rollback / pearl.rollback
        table.add_row(
            f"{record.temperature:g}",
            " ".join(str(value) for value in record.setting.values()),
            f"{record.tokens:.3f}",
            f"{tokens:.3f}",
            f"{record.rollback:.3f}",
            f"{rollback:.3f}",
            f"{record.stats['rollback_all']:.3f}",
            "" if record.predicted is None else f"{record.predicted:.3f}",
            style="bold" if tokens >= 1 and rollback <= ROLLBACK else "",
        )
    return table


def main() -> None:
    """Runs every setting at every temperature; writes the JSON anew after each."""
    options = parse()
    console = Console(stderr=True)
    pair = pairs.load(options.pair)
    encoded = [
        prompts.encode(pair, prompt, options.prompt_tokens)
        for file in options.prompts
        for prompt in prompts.read(file)[options.start : options.start + options.count]
    ]
    found: list[Record] = []
    cases = [(setting, temperature) for temperature in options.temperatures for setting in settings(options)]
    for setting, temperature in track(cases, "settings", console=console):
        found.append(measured(pair, setting, temperature, encoded, options))
        entries = [record._asdict() for record in found]
        records.save_result(options.out, vars(options), settings_compared=entries)
    Console(width=160).print(table_of(found))


def parse() -> argparse.Namespace:
    """The command line; every combination of the listed values is a setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", nargs="+", required=True, help="JSON lines")
    parser.add_argument("--start", type=int, default=0, help="the number of each file's first prompt")
    parser.add_argument("--count", type=int, default=4, help="prompts of each file")
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="prompts are cut to so many")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--pair", default=pairs.DEFAULT)
    parser.add_argument("--length", type=int, default=8, help="gamma, of PEARL too")
    parser.add_argument("--max-branches", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--widths", nargs="+", default=["adaptive", "all"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.2, 0.4])
    parser.add_argument("--heads", nargs="+", choices=("no", "yes"), default=["no"], help="H-RAD by the pair's head")
    parser.add_argument("--draft-stage", nargs="+", choices=("no", "yes"), default=["no"])
    parser.add_argument("--forks", nargs="+", default=["sequoia"])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="JSON to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
