"""A head's record in words, and as the card of its folder; the record is what `hrad.json` holds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CLASSES = ("none", "partial", "all")

LABELS = {
    "hrad": "H-RAD (3 classes)",
    "lengths": "G classes",
    "regression": "length as a number",
    "confidence": "confidence alone, most accurate ε",
    "confidence_balanced": "confidence alone, best balanced ε",
    "majority": "always the majority class",
}
"""What is compared, by `evaluation.PREDICTORS`."""


CUT_LABELS = {
    "hrad": "H-RAD, as it is set",
    "argmax": "H-RAD without offsets",
    "confidence": "confidence alone",
    "nothing": "no cut",
    "ideal": "a cut that knows what is accepted",
}
"""What is compared, by `evaluation.CUTS`."""


def card(record: Mapping[str, Any], title: str) -> str:
    """The `README.md` of a head's folder, from its record."""
    trained = record["trained"]
    lines = [
        f"# {title}",
        "",
        f"H-RAD's network for the pair {record['pair']} at temperature {record['temperature']:g}: from the target's "
        f"last {record['features']} hidden states and the newest token's embedding it guesses whether none, some "
        f"or all of a drafted continuation ({record['length']} tokens, γ) will be accepted. It changes speed only.",
        "",
        f"Trained on {trained['rounds']['training']} rounds of {trained['num_prompts']} prompts of "
        f"`{trained['prompts']}` ({trained['max_new_tokens']} new tokens each, texts by the target itself); "
        f"{trained['rounds']['stopping']} rounds of other prompts ended the training, epoch {trained['best_epoch']} of "
        f"{trained['epochs']} was the best.",
        "",
    ]
    for name, evaluation in evaluations(record):
        counts = evaluation["lengths"]["counts"]
        lines += [f"## {name}", "", f"{evaluation['rounds']} rounds.", ""]
        lines += ["| predictor | accuracy | balanced | none | partial | all |", "|---|---|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in score_rows(evaluation["scores"])]
        lines += ["", "| cut, one candidate at a fork | tokens a round, estimated | rollback |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in cut_rows(evaluation["cuts"])]
        lines += ["", f"Rounds by accepted length, 0 to {len(counts) - 1}: {', '.join(map(str, counts))}.", ""]
    lines += ["## Figures", "", *(f"- {line}" for line in facts(record)), "", "## Made by", ""]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines += ["```", record["command"], "```", "", f"{record['date']}, {record['machine']}; {versions}.", ""]
    lines += ["Licence: Apache-2.0."]
    return "\n".join(lines) + "\n"


def evaluations(record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the head was evaluated on, by title: held-out prompts, and those of another task."""
    found = [(f"Held-out prompts of {record['trained']['prompts']}", record["metrics"]["held_out"])]
    if record["metrics"]["other_task"] is not None:
        found.append((f"Prompts of {record['trained']['held_out_prompts']}", record["metrics"]["other_task"]))
    return found


def facts(record: Mapping[str, Any]) -> Sequence[str]:
    """What the tables do not say, a line each."""
    metrics = record["metrics"]
    held_out, epsilons, cost = metrics["held_out"], metrics["epsilons"], metrics["cost"]
    head, alone = metrics["settings"]["head"], metrics["settings"]["confidence"]
    shape = "bimodal" if held_out["lengths"]["is_bimodal"] else "not bimodal"
    lines = [
        f"The accepted lengths are {shape}: none and all against any length between them.",
        f"Set by the estimate on rounds it was not trained on: ε = {head['epsilon']:g}, logits of none "
        f"{head['none']:+g} and of all {head['all']:+g} (in the weights). The confidence alone: ε = {alone:g}.",
        f"Decided by the head itself (none or all): {held_out['hard_share']:.1%}; left to the confidence (partial): "
        f"{held_out['soft_share']:.1%}.",
        f"As a predictor of the class, the confidence is the most accurate at ε = {epsilons['accurate']:g} and the "
        f"best balanced at {epsilons['balanced']:g}.",
        f"One classification takes {cost['apply_ms']:.3f} ms, {cost['share']:.2%} of a round of "
        f"{cost['round_ms']:.1f} ms.",
    ]
    if metrics["other_task"] is not None:
        drop = {
            name: held_out["scores"]["hrad"][name] - metrics["other_task"]["scores"]["hrad"][name]
            for name in ("accuracy", "balanced")
        }
        lines.append(f"On the other task accuracy drops by {drop['accuracy']:.3f}, balanced by {drop['balanced']:.3f}.")
    return lines


def cut_rows(cuts: Mapping[str, Any]) -> list[list[str]]:
    """For each cut its label, the estimated tokens a round, and the rollback."""
    return [
        [CUT_LABELS[name], f"{cuts[name]['tokens_per_round']:.3f}", f"{cuts[name]['rollback']:.3f}"]
        for name in CUT_LABELS
    ]


def score_rows(scores: Mapping[str, Any]) -> list[list[str]]:
    """For each predictor its label, accuracy, balanced accuracy, and recall of each class."""

    def shown(value: float | None) -> str:
        return "–" if value is None or np.isnan(value) else f"{value:.3f}"

    return [
        [LABELS[name], *map(shown, (scores[name]["accuracy"], scores[name]["balanced"], *scores[name]["recall"]))]
        for name in LABELS
    ]
