"""Actions: what is encoded is what was done, and whatever a network says is read as something legal."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.device import H200
from pipeline.policy import action
from pipeline.policy.action import MEASURE, Choice
from templates import space
from templates.knob import CATEGORIES, columns_of, configs_of
from tests.policy_world import LARGE, ODD, SMALL, TEMPLATE, VOCAB, configs

SHAPES = (SMALL, LARGE, ODD)


def columns(n: int, workload=LARGE, seed: int = 0):  # type: ignore[no-untyped-def]
    return columns_of(list(configs(n, workload, seed)), TEMPLATE.names)


def test_moves_are_the_edits_of_the_template():
    for workload in SHAPES:
        some = configs(12, workload)
        moves = action.moves_of(TEMPLATE, columns_of(list(some), TEMPLATE.names), workload, H200.limits)
        for row, config in enumerate(some):
            expected = space.edits(TEMPLATE, config, workload, H200.limits)
            found = [
                (
                    TEMPLATE.names[moves.steps.knob[m]],
                    int(moves.steps.value[m]),
                    {name: int(column[row, m]) for name, column in moves.after.items()},
                )
                for m in np.flatnonzero(moves.legal[row])
            ]
            assert found == expected


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.floats(0, 0.95))
def test_encoding_of_an_executed_edit_decodes_to_it(seed, workload, jitter):
    rng, at = np.random.default_rng(seed), columns(6, workload, seed % 7)
    moves = action.moves_of(TEMPLATE, at, workload, H200.limits)
    move = np.array([rng.choice(np.flatnonzero(row)) for row in moves.legal])
    choice = Choice(rng.random(6) < 0.3, move)
    vectors = action.encode(VOCAB, moves, at, choice, jitter, rng)
    assert np.abs(vectors).max() <= 1
    back = action.decode(VOCAB, vectors, moves, np.ones(6, dtype=bool))
    assert (back.measure == choice.measure).all()
    assert (back.move == move)[~choice.measure].all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES))
def test_any_vector_is_read_as_a_legal_move(seed, workload):
    rng, at = np.random.default_rng(seed), columns(6, workload, seed % 5)
    moves = action.moves_of(TEMPLATE, at, workload, H200.limits)
    vectors = rng.uniform(-1, 1, (6, VOCAB.size)) if seed % 3 else np.ones((6, VOCAB.size))
    choice = action.decode(VOCAB, vectors, moves, np.zeros(6, dtype=bool))
    assert not choice.measure.any()
    results = moves.taken(choice.move)
    assert space.legal(TEMPLATE, results, workload, H200.limits).all()
    assert all(after != before for after, before in zip(configs_of(results), configs_of(at), strict=True))


def test_category_decides_before_knob():
    at = columns(1)
    moves = action.moves_of(TEMPLATE, at, LARGE, H200.limits)
    vector = np.full((1, VOCAB.size), -1.0)
    vector[0, CATEGORIES.index("schedule")] = 0.5
    vector[0, VOCAB.scores_at(TEMPLATE)[TEMPLATE.names.index("block_m")]] = 1.0  # the best knob, of another category
    move = action.decode(VOCAB, vector, moves, np.array([True])).move[0]
    assert TEMPLATE.knobs[moves.steps.knob[move]].category == "schedule"


def test_measuring_needs_permission():
    at = columns(2)
    moves = action.moves_of(TEMPLATE, at, LARGE, H200.limits)
    vectors = np.full((2, VOCAB.size), -1.0)
    vectors[:, MEASURE] = 1.0
    assert action.decode(VOCAB, vectors, moves, np.array([True, False])).measure.tolist() == [True, False]


def test_stored_action_is_not_what_the_network_said_but_what_was_done():
    at = columns(1)
    moves = action.moves_of(TEMPLATE, at, LARGE, H200.limits)
    said = np.ones((1, VOCAB.size))  # every category, every knob, every value at its largest
    choice = action.decode(VOCAB, said, moves, np.array([False]))
    stored = action.encode(VOCAB, moves, at, choice)
    knob = TEMPLATE.names[moves.steps.knob[choice.move[0]]]
    scores = stored[0, VOCAB.scores_at(TEMPLATE)]
    assert [name for name, score in zip(TEMPLATE.names, scores, strict=True) if score == 1] == [knob]
    after = {name: column[0] for name, column in moves.taken(choice.move).items()}
    expected = action.positions(TEMPLATE, {name: np.array([value]) for name, value in after.items()})
    np.testing.assert_allclose(stored[0, VOCAB.values_at(TEMPLATE)], expected[0], atol=1e-6)


def test_vocabulary_serves_knobs_of_other_operators():
    wider = action.Vocabulary(tuple(sorted({*VOCAB.knobs, "zz_rows", "aa_warps"})))
    at = columns(4)
    moves = action.moves_of(TEMPLATE, at, LARGE, H200.limits)
    choice = Choice(np.zeros(4, dtype=bool), np.array([np.flatnonzero(row)[3] for row in moves.legal]))
    vectors = action.encode(wider, moves, at, choice)
    foreign = [wider.names().index(f"knob_{name}") for name in ("zz_rows", "aa_warps")]
    assert (vectors[:, foreign] == -1).all()
    assert (action.decode(wider, vectors, moves, np.zeros(4, dtype=bool)).move == choice.move).all()


def test_walking_towards_a_goal_arrives_over_legal_configs():
    start = configs(1)[0]
    goal = start
    for place in (5, 11):  # two legal edits away
        goal = space.edits(TEMPLATE, goal, LARGE, H200.limits)[place][2]
    current, target = columns_of([start], TEMPLATE.names), columns_of([goal], TEMPLATE.names)
    for _ in range(8):
        moves = action.moves_of(TEMPLATE, current, LARGE, H200.limits)
        nearer, move = action.towards(moves, current, target)
        if not nearer[0]:
            break
        assert moves.legal[0, move[0]]
        current = moves.taken(move)
    assert configs_of(current)[0] == goal
