"""Which method and setting a command takes: what was asked, a profile's, or the defaults."""

import json

import pytest
from commands import DEFAULT_TREE, PROFILE, generated

from jaxspec import plan, ranking, tree
from jaxspec.catalogue import registry


@pytest.mark.parametrize(
    ("options", "method", "parents", "length"),
    [
        ("--method autoregressive", "autoregressive", None, None),
        ("--method speculative", "speculative", None, registry.METHODS["speculative"].defaults["length"]),
        ("--method topk", "topk", DEFAULT_TREE, None),
        ("--method topk --tree star:2", "topk", [-1, 0, 0], None),
        ("--method sequoia", "sequoia", DEFAULT_TREE, None),
        ("--tree -1,0,0,1", "sequoia", [-1, 0, 0, 1], None),
        ("--tree=-1,0,0,1", "sequoia", [-1, 0, 0, 1], None),
        ("--tree k-ary:2x2", "sequoia", [-1, 0, 0, 1, 1, 2, 2], None),
        ("--profile {}/plain.json", "autoregressive", None, None),
        ("--tree optimal:5 --profile {}/profile.json", "sequoia", "optimal:5", None),
        ("--tree optimal --profile {}/profile.json", "sequoia", "best", None),
        ("--method sequoia --profile {}/profile.json", "sequoia", "best", None),
        ("--method speculative --profile {}/profile.json", "speculative", None, "best"),
        ("--method adaedl --profile {}/profile.json", "adaedl", None, "best"),
        ("--method pearl --profile {}/profile.json", "pearl", None, "best"),
        ("--method topk --profile {}/profile.json", "topk", "best", None),
        ("--method topk --tree optimal:5 --profile {}/profile.json", "topk", "optimal:5", None),
        ("--length 3", "speculative", None, 3),
        ("--max-branches 2", "specbranch", None, registry.METHODS["specbranch"].defaults["length"]),
        ("--epsilon 0.2 --length 3", "specbranch", None, 3),
        ("--width all --length 3", "specbranch", None, 3),
    ],
)
def test_the_method_that_is_taken(run, folder, calls, options, method, parents, length):
    if parents == "best":
        parents = list(plan.best(PROFILE).tree.parents)
    elif parents == "optimal:5":
        parents = list(plan.optimal_tree(PROFILE.acceptance, 5).parents)
    if length == "best":
        fastest = ranking.fastest(method, PROFILE)
        assert fastest is not None
        length = fastest.length
    config = generated(run, *options.format(folder).split())["config"]
    assert (config["method"], config["tree"], config["length"]) == (method, parents, length)
    assert config["profile"] == next((word for word in options.format(folder).split() if "json" in word), None)
    is_predicted = method not in ("autoregressive", "adaedl") and config["profile"] is not None
    assert ("expected_speedup" in config) == is_predicted
    assert ("expected_tokens" in config) == is_predicted
    decoder = calls[0][0]
    assert decoder.depth == (0 if method == "autoregressive" else length or tree.TokenTree(tuple(parents)).depth)


def test_a_pairs_own_profile_plans_unless_it_is_of_another_draft(run, folder, tmp_path, calls):
    entries = {"target": str(folder / "target"), "draft": {"early_exit": 1}, "profiles": ["profile.json"]}
    (tmp_path / "pair.json").write_text(json.dumps(entries))
    PROFILE.save(tmp_path / "profile.json")
    words = ["generate", "hello", "--json", "--pair", tmp_path, "--temperature", 1]
    _, out, err = run(*words, pair=False)
    assert json.loads(out)["config"]["tree"] == list(plan.best(PROFILE).tree.parents)
    assert f"the profile of {tmp_path.name} was measured at temperature 0, not 1" in err
    _, out, err = run(*words, "--draft-layers", 1, pair=False)
    assert json.loads(out)["config"]["tree"] == DEFAULT_TREE
    assert "no profile to plan by" in err
