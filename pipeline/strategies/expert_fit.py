"""Settings of `experts` from places where the truth is known: each known GPU in turn is the unknown one, the others its experts.

They maximise the likelihood of what was measured there (type II maximum likelihood; Rasmussen and Williams, 2006, section
5.4.1), half of it at configs the experts like, where a search will look, half anywhere.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from pipeline.strategies.experts import ExpertSettings, Opinions

ROWS = 160
SHARES = (None, 0.5, 1.0)
"""Tried for the last expert, where there are several: all alike, half for it, all for it."""

BOUNDS = {"trust": (0.01, 3.0), "sd": (0.01, 2.0), "reach": (0.1, 30.0), "noise": (0.005, 1.0)}

Case = tuple[Opinions, np.ndarray]
"""Experts' opinions of n configs, and the log times measured there, (n,)."""


def sampled(opinions: Opinions, log_us: np.ndarray, rng: np.random.Generator) -> Case:
    """Up to ROWS configs with a time: half of them from the tenth that the experts like best, half from all."""
    timed = np.flatnonzero(np.isfinite(log_us))
    liked = timed[np.argsort(opinions.prior(timed, ExpertSettings()))[: max(1, len(timed) // 10)]]
    few = rng.permutation(liked)[: ROWS // 2]
    rest = rng.permutation(np.setdiff1d(timed, few))[: ROWS - len(few)]
    kept = np.concatenate([few, rest])
    return Opinions(opinions.said[kept], opinions.places[kept]), log_us[kept]


def fitted(cases: Sequence[Case]) -> ExpertSettings:
    """The most likely settings for all cases together; the defaults where there is no case."""
    if not cases:
        return ExpertSettings()
    shares = SHARES if min(opinions.said.shape[1] for opinions, _ in cases) > 1 else SHARES[:1]
    return min((_most_likely(cases, share) for share in shares), key=lambda found: found[0])[1]


def _most_likely(cases: Sequence[Case], share: float | None) -> tuple[float, ExpertSettings]:
    """Minus the log likelihood, and the settings that make it so, for one `last_share`."""
    start, names = ExpertSettings(share), list(BOUNDS)

    def settings(logs: np.ndarray) -> ExpertSettings:
        return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def loss(logs: np.ndarray) -> float:
        return -sum(log_likelihood(opinions, log_us, settings(logs)) for opinions, log_us in cases)

    first = np.log([getattr(start, name) for name in names])
    found = minimize(loss, first, method="L-BFGS-B", bounds=[tuple(np.log(BOUNDS[name])) for name in names])
    return float(found.fun), settings(found.x)


def log_likelihood(opinions: Opinions, log_us: np.ndarray, settings: ExpertSettings) -> float:
    """log p(measured log times | settings), up to a constant; algorithm 2.1 of the book."""
    every = np.arange(len(log_us))
    off = log_us - opinions.prior(every, settings)
    off = off - off.mean()
    factor = cho_factor(opinions.covariance(every, every, settings) + settings.noise**2 * np.eye(len(every)), lower=True)
    return float(-0.5 * off @ cho_solve(factor, off) - np.log(np.diag(factor[0])).sum())
