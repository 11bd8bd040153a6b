"""What measurements say beyond the cost model: a Gaussian process on its errors, over the knobs.

Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1, with a Laplacian kernel on knob distance
(knobs are steps, not lengths) and a constant of its own, as the model is right only up to a constant per workload.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

CONSTANT_SD = 1.0
"""Prior spread of the model's constant per workload, in log time."""


@dataclass(frozen=True)
class ResidualSettings:
    """sd: how wrong the cost model usually is, log time. reach: knob distance (each knob's range is 1) over which errors are
    alike. noise: spread of a measurement round what can be explained.
    """

    sd: float = 0.2
    reach: float = 2.0
    noise: float = 0.02


@dataclass(frozen=True)
class Residual:
    """Errors seen at some configs. `positions` (k, knobs) span [-1, 1]; `errors` (k,) are measured minus predicted log time."""

    positions: np.ndarray
    errors: np.ndarray
    settings: ResidualSettings

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (n,) of the model's error at n configs; the prior where nothing was seen."""
        prior = self.settings.sd**2
        if not len(self.errors):
            return np.zeros(len(positions)), np.full(len(positions), self.settings.sd)
        centre = float(self.errors.mean())
        within = self._kernel(self.positions, self.positions) + self.settings.noise**2 * np.eye(len(self.errors))
        factor = cho_factor(within, lower=True)
        across = self._kernel(positions, self.positions)
        mean = centre + across @ cho_solve(factor, self.errors - centre)
        explained = np.einsum("ij,ji->i", across, cho_solve(factor, across.T))
        # The constant is common to all candidates: it moves none of them past another, so its doubt is left out.
        doubt = np.sqrt(np.clip(prior + CONSTANT_SD**2 - explained, 0.0, prior))
        return mean, doubt

    def believing(self, position: np.ndarray) -> "Residual":
        """As if a config (knobs,) had been measured and had come out as expected: the next pick looks elsewhere.

        Kriging believer: Ginsbourger, Le Riche, Carraro, Kriging is well-suited to parallelize optimization, 2010.
        """
        expected, _ = self.at(position[None])
        return Residual(np.vstack([self.positions, position]), np.append(self.errors, expected), self.settings)

    def _kernel(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        distance = cdist(one, other, metric="cityblock") / 2
        return np.asarray(self.settings.sd**2 * np.exp(-distance / self.settings.reach) + CONSTANT_SD**2)
