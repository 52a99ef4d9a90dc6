"""The data a draft is distilled from: conversations that label themselves, and the shares of a copying draft."""

import fit_copying
import jax
import numpy as np
import self_chat
import toys

from jaxspec import decode
from jaxspec.decode import loop
from jaxspec.decode.request import Asked, checked

V, LENGTH = 12, 48
USER_HEAD, ANSWER_HEAD, END = (9, 7), (9, 8, 6), 10


def chat(temperature, prompts=((9, 7, 1), (9, 7, 2, 10, 9, 8, 6)), answer_limit=5):
    model = toys.TableLM(V)
    params = {"target": model.init(jax.random.key(2))}
    decoder = self_chat.SelfChat(
        model, (USER_HEAD, ANSWER_HEAD), END, count=3, user_limits=(4, 7), answer_limit=answer_limit
    )
    asked = Asked(
        max_new_tokens=[LENGTH - len(prompt) for prompt in prompts],
        sampling=decode.Sampling(temperature=[temperature, 1.0]),
        logprobs=False,
        prefill_chunk=8,
        first_capacity=LENGTH,
    )
    request = checked(decoder, params, prompts, jax.random.key(0), asked)
    state = self_chat.run(decoder, params, loop.begin(decoder, params, request))
    return params, jax.device_get(state)


def turns(tokens):
    """(speaker, spoken tokens) of each whole turn behind the first END, by the heads that open them."""
    found, place = [], 0
    tokens = tokens.tolist()
    while place < len(tokens):
        for speaker, head in (("answer", ANSWER_HEAD), ("user", USER_HEAD)):
            if tuple(tokens[place : place + len(head)]) == head:
                rest = tokens[place + len(head) :]
                if END not in rest:
                    return found
                spoken = rest[: rest.index(END)]
                found.append((speaker, spoken))
                place += len(head) + len(spoken) + 1
                break
        else:
            if place > len(tokens) - len(ANSWER_HEAD):
                return found  # the row ends in a head
            raise AssertionError(f"no head at {place}: {tokens}")
    return found


def test_turns_alternate_behind_their_heads_and_end_at_their_limits():
    _, state = chat(1.0)
    first, second = (turns(row[:LENGTH]) for row in state.row.tokens)
    assert [speaker for speaker, _ in first] == ["user", "answer"] * (len(first) // 2) + ["user"] * (len(first) % 2)
    assert second[1][0] == "answer"  # the prompt held the whole question
    assert len(first) > 3
    assert all(len(spoken) <= (5 if speaker == "answer" else 7) for speaker, spoken in first[1:] + second[1:])


def test_labels_are_the_targets_own_distributions():
    params, state = chat(1.0)
    log_probs = np.asarray(jax.nn.log_softmax(params["target"]["table"], axis=-1))
    for row, prompt_length in zip(range(2), (3, 7), strict=True):
        tokens, labels = state.row.tokens[row], jax.tree.map(lambda leaf, row=row: leaf[row], state.memory.labels)
        assert np.isnan(labels.log_probs[: prompt_length - 1]).all()
        for place in range(prompt_length - 1, LENGTH - 1):
            expected = np.argsort(-log_probs[tokens[place]])[:3]
            np.testing.assert_array_equal(labels.token_ids[place], expected)
            np.testing.assert_allclose(labels.log_probs[place], log_probs[tokens[place]][expected], atol=2e-3)


def test_a_greedy_answer_takes_the_most_probable_tokens():
    params, state = chat(0.0, answer_limit=20)
    table = np.asarray(params["target"]["table"])
    speaker, spoken = turns(state.row.tokens[0][:LENGTH])[1]
    assert speaker == "answer"
    previous = ANSWER_HEAD[-1]
    for token in spoken:
        assert token == table[previous].argmax()
        previous = token


def test_the_answer_begins_behind_its_head():
    tokens = np.array([9, 7, 1, 10, 9, 8, 6, 3, 3])
    assert self_chat.answer_start(tokens, ANSWER_HEAD) == 7
    assert self_chat.answer_start(tokens[:6], ANSWER_HEAD) == 6


def test_followers_are_those_of_the_latest_longest_agreement():
    tokens = np.array([1, 2, 3, 1, 2, 4, 1, 2])
    agreement, follower = fit_copying.followers(tokens, 3)
    np.testing.assert_array_equal(agreement, [0, 0, 0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(follower[agreement > 0], [2, 3, 2, 4])


def test_the_fit_finds_the_share_that_made_the_data():
    rng = np.random.default_rng(0)
    num, share, own = 40000, 0.7, 0.3
    is_copying = rng.random(num) < share
    agrees = is_copying | (rng.random(num) < own)  # the draft may say the same
    drafted = np.where(agrees, own, 0.2)
    found = fit_copying.fit(np.ones(num, int), drafted, agrees, 2)
    assert abs(found[0] - share) < 0.02
    assert found[1] == 0.0
