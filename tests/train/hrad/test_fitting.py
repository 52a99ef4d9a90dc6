"""The fit on made-up rounds whose answer is known, and the arithmetic of scores."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import hrad, theory
from jaxspec.cli.show.head_tables import print_head
from jaxspec.cli.show.terminal import results_console
from jaxspec.networks import MLP
from jaxspec.pairs import heads
from jaxspec.records import finite
from jaxspec.train.hrad import cards, deciding, evaluation, fitting, scores
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.evaluation import CUTS, PREDICTORS, Cost
from jaxspec.train.hrad.fitting import Examples
from jaxspec.train.hrad.trained import Collected, metrics, train

LENGTH = 5
NETWORK = MLP(1, 4, hidden_sizes=(32, 16))


def made_up(seed, num_rounds=240, num_prompts=20):
    """Rounds whose accepted length shows in the features, and whose confidence is low just behind it, mostly."""
    rng = np.random.default_rng(seed)
    accepted = rng.choice(LENGTH, num_rounds, p=[0.35, 0.1, 0.1, 0.1, 0.35]).astype(np.int32)
    features = rng.normal(size=(num_rounds, 1, 4)).astype(np.float32)
    features[:, 0, 0] = 3.0 * accepted + 100.0
    confidence = rng.uniform(0.62, 1.0, (num_rounds, LENGTH)).astype(np.float32)
    low = rng.random(num_rounds) < 0.8
    confidence[np.arange(num_rounds)[low], accepted[low]] = 0.58
    rounds = Rounds(features, np.zeros(num_rounds, np.int32), confidence, accepted, np.arange(num_rounds) % num_prompts)
    return Collected(rounds, np.concatenate([features[:, 0], np.zeros((num_rounds, 4), np.float32)], axis=1))


@pytest.fixture
def optax_promotion():
    """optax's bias correction raises a Python float to an int32 power, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def trained():
    told = []
    with jax.numpy_dtype_promotion("standard"):
        found = train(
            made_up(0),
            made_up(1),
            seed=3,
            learning_rate=0.01,
            hidden_sizes=(32, 16),
            progress=lambda *one: told.append(one),
        )
    return found, told


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, 8)).astype(np.float32) * 5 + 20
    targets = (inputs[:, 0] > 20).astype(np.int32) + (inputs[:, 0] > 24).astype(np.int32)
    return Examples(inputs, targets, np.ones(count, np.float32))


def test_no_prompt_is_in_two_parts_and_all_rounds_are_in_one():
    prompts = np.repeat(np.arange(20), np.arange(1, 21))
    split = fitting.split_by_prompt(prompts, 0)
    assert np.sum(split, axis=0).tolist() == [1] * len(prompts)
    parts = [set(prompts[mask].tolist()) for mask in split]
    assert [len(part) for part in parts] == [14, 2, 4]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert any((a != b).any() for a, b in zip(split, fitting.split_by_prompt(prompts, 1), strict=True))
    with pytest.raises(ValueError, match="of 2 prompts"):
        fitting.split_by_prompt(np.array([4, 4, 9]), 0)


def test_class_weights_are_inverse_to_frequency():
    among = np.array([0] * 6 + [1] * 2 + [2] * 4)
    weights = fitting.class_weights(among, among)
    assert weights.tolist() == pytest.approx([12 / 18] * 6 + [2] * 2 + [1] * 4)
    assert weights.mean() == pytest.approx(1)
    assert fitting.class_weights(np.array([0, 2]), np.array([0, 0, 2, 2, 2, 2])).tolist() == [1.5, 0.75]


def test_standardisation_and_batches():
    inputs = examples(50).inputs
    inputs[:, 3] = 7.0
    found = fitting.standardisation(inputs)
    scaled = (inputs - np.asarray(found["mean"])) / np.asarray(found["scale"])
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0), [1, 1, 1, 0, 1, 1, 1, 1], atol=1e-5)
    assert fitting.batches(np.array([2, 0, 1]), 2).tolist() == [[2, 0], [1, -1]]


def test_losses():
    outputs = jnp.array([[0.0, np.log(3.0)], [1.0, 1.0]])
    np.testing.assert_allclose(fitting.cross_entropy(outputs, jnp.array([1, 0])), [np.log(4 / 3), np.log(2)], rtol=1e-5)
    assert fitting.squared_error(jnp.array([[1.0], [3.0]]), jnp.array([2.0, 1.5])).tolist() == [1.0, 2.25]


def fit(training, stopping, **options):
    options = {"seed": 0, "epochs": 20, "learning_rate": 0.01, "patience": 20} | options
    return fitting.fit(NETWORK, fitting.cross_entropy, training, stopping, **options)


@pytest.mark.usefixtures("optax_promotion")
def test_a_fit_learns_and_its_seed_decides_it():
    training, stopping = examples(640), examples(100, 1)
    first, again, other = (fit(training, stopping, seed=seed, epochs=8) for seed in (0, 0, 1))
    predicted = fitting.logits(first, stopping.inputs).argmax(-1)
    assert (predicted == stopping.targets).mean() > 0.85
    jax.tree.map(np.testing.assert_array_equal, first.params, again.params)
    assert (first.losses == again.losses).all()
    assert not np.array_equal(first.params["layers"]["0"]["weight"], other.params["layers"]["0"]["weight"])
    np.testing.assert_array_equal(first.params["mean"], fitting.standardisation(training.inputs)["mean"])


@pytest.mark.usefixtures("optax_promotion")
def test_the_best_epoch_is_kept_and_patience_ends_the_fit():
    training, stopping = examples(40), examples(40, 1)
    rng = np.random.default_rng(0)
    noise = stopping._replace(targets=rng.permutation(stopping.targets))  # the more is learnt, the worse it gets
    told = []
    fitted = fit(training, noise, epochs=30, patience=3, learning_rate=0.03, progress=lambda *one: told.append(one))
    assert len(fitted.losses) == fitted.best_epoch + 3 < 30
    assert fitted.losses[:, 1].argmin() == fitted.best_epoch - 1
    kept = fitting.mean_loss(NETWORK, fitting.cross_entropy, fitted.params, noise)
    assert float(kept) == pytest.approx(fitted.losses[:, 1].min())
    assert told[-1] == ("fit", 30, 30)


@pytest.mark.usefixtures("optax_promotion")
def test_examples_without_weight_teach_nothing():
    training, stopping = examples(320), examples(100, 1)
    wrong = training._replace(targets=2 - training.targets, weights=np.zeros(320, np.float32))
    both = Examples(*(np.concatenate(leaves) for leaves in zip(training, wrong, strict=True)))
    found = fit(both, stopping)
    predicted = fitting.logits(found, stopping.inputs).argmax(-1)
    assert (predicted == stopping.targets).mean() > 0.7
    heavy = both._replace(weights=1 - both.weights)
    predicted = fitting.logits(fit(heavy, stopping), stopping.inputs)
    assert (predicted.argmax(-1) == stopping.targets).mean() < 0.6


def test_a_fit_refuses_nothing_to_fit():
    nothing = Examples(*(leaf[:0] for leaf in examples(3)))
    with pytest.raises(ValueError, match="no stopping rounds"):
        fit(examples(3), nothing)
    with pytest.raises(ValueError, match="epochs=0"):
        fit(examples(3), examples(3), epochs=0)


def test_scores():
    found = scores.score(np.array([0, 0, 0, 2]), np.array([0, 1, 0, 2]))
    assert found.confusion == ((2, 1, 0), (0, 0, 0), (0, 0, 1))
    assert found.accuracy == 0.75
    assert found.recall == pytest.approx((2 / 3, np.nan, 1), nan_ok=True)
    assert found.balanced == pytest.approx(5 / 6)


def test_accepted_lengths():
    rng = np.random.default_rng(0)
    pmf = theory.accepted_pmf(0.7, 4)
    found = scores.accepted_lengths(rng.choice(5, 4000, p=pmf), 5)
    assert found.alpha == pytest.approx(0.7, abs=0.02)
    np.testing.assert_allclose(found.geometric, 4000 * theory.accepted_pmf(found.alpha, 4))
    assert sum(found.counts) == 4000
    assert not scores.accepted_lengths(np.array([0, 1, 1, 2, 2, 2]), 3).is_bimodal
    assert scores.accepted_lengths(np.array([0, 0, 1, 2, 2, 2]), 3).is_bimodal
    assert scores.accepted_lengths(np.array([0, 1, 1, 2]), 3)[:2] == ((1, 2, 1), 4 / 7)


def test_epsilons_are_the_best_ones():
    rounds = made_up(0).rounds
    assert scores.choose_epsilons(rounds) == (0.6, 0.6)
    rare = rounds.take(np.flatnonzero((rounds.classes != hrad.NONE) | (np.arange(len(rounds.tokens)) % 10 == 0)))
    for name, value in scores.choose_epsilons(rare)._asdict().items():
        assert value in deciding.EPSILONS, name


def test_the_head_and_what_it_is_compared_with(trained):
    found, told = trained
    assert list(found.fitted) == list(fitting.NAMES)
    sizes = [fitted.network.num_classes for fitted in found.fitted.values()]
    assert sizes == [3, LENGTH, 1]
    for assessed in (found.held_out, found.other_task):
        assert list(assessed.scores) == list(PREDICTORS)
        assert all(np.sum(one.confusion) == assessed.rounds for one in assessed.scores.values())
        assert all(assessed.scores[name].accuracy > 0.75 for name in ("hrad", "confidence"))
        assert assessed.scores["majority"].accuracy < 0.6
        assert assessed.scores["majority"].balanced == pytest.approx(1 / 3)
        assert assessed.hard_share + assessed.soft_share == 1
        assert list(assessed.cuts) == list(CUTS)
        assert assessed.cuts["ideal"].rollback == 0.0
        assert assessed.cuts["nothing"].rollback == max(one.rollback for one in assessed.cuts.values())
    assert found.held_out.rounds == found.num_rounds["held_out"] == 4 * 12
    assert found.num_prompts == {"training": 14, "stopping": 2, "held_out": 4}
    assert found.other_task.rounds == 240
    assert {what for what, _, _ in told} == set(fitting.NAMES)
    inputs, setting = made_up(2).inputs, found.settings.head
    wanted = deciding.decided(fitting.logits(found.fitted["hrad"], inputs), setting)
    network, params = found.head
    assert np.asarray(network.apply(params, inputs)).argmax(-1).tolist() == wanted.tolist()


def test_the_predicted_lengths_are_classes_or_rounded_numbers(trained):
    found, _ = trained
    inputs = made_up(2).inputs
    for name in ("lengths", "regression"):
        predicted = fitting.predicted_lengths(found.fitted[name], inputs, LENGTH)
        assert set(predicted.tolist()) <= set(range(LENGTH))
    network = MLP(1, 4, (32, 16), 1)
    params = jax.tree.map(jnp.zeros_like, network.init(jax.random.key(0)))
    for output, wanted in ((2.4, 2), (2.6, 3), (9.0, 4), (-3.0, 0)):
        params["layers"]["2"]["bias"] = jnp.full(1, output)
        fitted = fitting.Fitted(network, params | {"scale": jnp.ones(8)}, np.zeros((1, 2)), 1)
        assert fitting.predicted_lengths(fitted, inputs[:1], LENGTH).tolist() == [wanted]


def test_the_card_and_the_tables_state_the_figures(trained, tmp_path, capsys):
    found, _ = trained
    network, params = found.head
    record = finite(
        {
            "pair": "toy",
            "temperature": 1.0,
            "length": LENGTH,
            "features": 1,
            "epsilon": found.settings.head.epsilon,
            "trained": found.protocol()
            | {
                "num_prompts": 20,
                "prompts": "a.jsonl",
                "held_out_prompts": "b.jsonl",
                "max_new_tokens": 9,
                "epochs": 20,
            },
            "metrics": metrics(found, evaluation.cost(network, params, 2.0, repeats=1)),
            "command": "jaxspec train-hrad …",
            "machine": "a machine",
            "versions": {"jax": "1"},
            "date": "2000-01-01",
        }
    )
    cost = record["metrics"]["cost"]
    assert 0 < cost["apply_ms"] < 100
    assert cost["share"] == pytest.approx(cost["apply_ms"] / 2.0)
    card = cards.card(record, "A head")
    heads.save(tmp_path, network, params, record, card)
    assert json.loads((tmp_path / "hrad.json").read_text()) == record | {
        "config": {"num_features": 1, "width": 4, "hidden_sizes": [32, 16], "num_classes": 3}
    }
    print_head(results_console(), record)
    tables = capsys.readouterr().out
    accuracy = f"{found.held_out.scores['hrad'].accuracy:.3f}"
    for text in (card, tables):
        assert accuracy in text
        for label in cards.LABELS.values():
            assert label in text
        assert "b.jsonl" in text
        assert "bimodal" in text
    assert "jaxspec train-hrad …" in card
    assert "Licence: Apache-2.0." in card
    assert "says partial" in tables
    assert Cost(1.0, 4.0, 0.25)._asdict() == {"apply_ms": 1.0, "round_ms": 4.0, "share": 0.25}
