"""Sampling a space whose legal configs are rare: quick, and still each as likely as any other."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from templates import space
from templates.knob import Knob, config_text
from templates.template import Constraint, Limits, load_template

MATMUL = load_template("matmul")
W = MATMUL.workload(M=8, N=8, K=8)
TOY = replace(
    MATMUL,
    knobs=(
        Knob("tile", "layout", tuple(range(256)), 0, ""),
        Knob("copies", "memory", (0, 1), 0, ""),
        Knob("stages", "schedule", (1, 2, 3, 4), 2, "", lambda c: c["copies"] == 1),
        Knob("depth", "schedule", (1, 2, 3, 4, 5, 6, 7, 8), 2, "", lambda c: c["copies"] == 0),
        Knob("order", "schedule", tuple(range(16)), 0, "", lambda c: c["tile"] >= 3),
    ),
    constraints=(Constraint("only the first", lambda c, *_: c["tile"] < 3),),
)
LEGAL = 3 * (4 + 8)


def test_rare_configs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw in 5,000 to 10,000 is canonical and legal: 100,000 draws would give a third of the 36 configs."""
    monkeypatch.setattr(space, "BATCH", 500)
    found = space.sample(TOY, W, Limits(), LEGAL, np.random.default_rng(0))
    assert len({config_text(config) for config in found}) == LEGAL
    assert all(space.violations(TOY, config, W, Limits()) == [] for config in found)


def test_rare_configs_are_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config that twice as many draws stand for comes no more often."""
    monkeypatch.setattr(space, "BATCH", 2000)
    rng, calls, each = np.random.default_rng(2), 150, 6
    counts = Counter(config_text(config) for _ in range(calls) for config in space.sample(TOY, W, Limits(), each, rng))
    expected = calls * each / LEGAL
    assert len(counts) == LEGAL
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < chi2.ppf(1 - 1e-4, LEGAL - 1)
