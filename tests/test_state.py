"""The state: every number has a name, every name a number, and what was seen is in it."""

import numpy as np
import pytest

from cost_model import features
from datasets.device import H200
from pipeline.policy import state
from pipeline.policy.reward import Outcome
from pipeline.policy.state import Layout
from templates.errors import InputError
from tests.policy_world import LARGE, LAYOUT, TEMPLATE, configs, search


def value(found, name: str) -> float:  # type: ignore[no-untyped-def]
    return float(found.states(np.arange(1))[0, LAYOUT.places[name]])


def test_every_dimension_has_a_name_of_its_own():
    names = state.layout().names()
    assert len(names) == state.layout().size == len(set(names))
    assert state.names() == names


def test_state_holds_the_features_of_the_current_config():
    found = search(3)
    states = found.states(np.arange(3))
    assert states.shape == (3, LAYOUT.size) and np.isfinite(states).all()
    expected = features.matrix(TEMPLATE, LARGE, found.at(np.arange(3)), H200)
    at = [LAYOUT.places[name] for name in features.names(TEMPLATE)]
    np.testing.assert_allclose(states[:, at], expected, rtol=1e-6)


def test_a_measurement_shows_in_the_state():
    found = search(1)
    predicted = value(found, "level")
    time = found.memory.baseline[0] - (predicted + 0.4) if found.memory.baseline_known[0] else 2.0
    found.observe(np.array([0]), [Outcome("ok", time)])
    assert value(found, "is_measured") == 1 and value(found, "last_ok") == 1 and value(found, "last_none") == 0
    assert value(found, "best_speedup") == pytest.approx(value(found, "level"))


def test_a_failure_shows_in_the_state():
    found = search(1)
    found.observe(np.array([0]), [Outcome("crash", None)])
    assert value(found, "last_run_failure") == 1 and value(found, "is_measured") == 0
    assert not found.may_measure(np.array([0]))[0]  # not again


def test_source_counts_move_with_the_config():
    layout = state.layout(["matmul"])
    rows = state.source_rows(layout, TEMPLATE, [dict(TEMPLATE.naive), configs(1)[0]])
    assert rows.shape == (2, len(layout.source)) and len(layout.source) > 10
    assert np.isfinite(rows).all() and (rows[0] != rows[1]).any()


def test_unknown_feature_is_one_clear_line():
    older = Layout(LAYOUT.ops, LAYOUT.features[:-1], ())
    found = search(1)
    with pytest.raises(InputError, match="run `make pretrain` again"):
        older.assemble(TEMPLATE, found.features, np.zeros((1, 0)), {name: np.zeros(1) for name in state.FEEDBACK})
