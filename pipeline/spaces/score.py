"""How well a search did on a measured space: P, the share of the way from random search to the optimum, and the fraction of it.

P = (S_rand - F) / (S_rand - S_opt), averaged over the budget: F is the best time after k measurements, S_rand what random search
expects to have by then, S_opt the space's best time (after Willemsen and others, A methodology for comparing optimization
algorithms for auto-tuning, 2024, with measurements in place of seconds). 0 is random search, 1 the optimum at once; below 0 is
worse than random. Failures count as measurements. Until something runs, both are taken to have the space's median time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from datasets.measured_space import MeasuredSpace


@dataclass(frozen=True)
class Ruler:
    """A space's yardsticks, microseconds: best and median time, and `random[k - 1]`, what random search expects after k."""

    best_us: float
    median_us: float
    random_us: np.ndarray

    @staticmethod
    def of(space: MeasuredSpace, budget: int) -> "Ruler":
        """For up to `budget` measurements."""
        times = np.sort([row.time_us for row in space.rows if row.time_us is not None])
        median = float(np.median(times))
        expected = np.array([_expected_best(times, len(space.rows), k, median) for k in range(1, budget + 1)])
        return Ruler(float(times[0]), median, expected)

    def best_so_far(self, times_us: Sequence[float | None], budget: int) -> np.ndarray:
        """(budget,): the best time after each measurement; what a search that ended early found, it keeps."""
        best = np.fmin.accumulate([np.nan if t is None else t for t in times_us] or [np.nan])[:budget]
        best = np.concatenate([best, np.full(budget - len(best), best[-1])])
        return np.where(np.isfinite(best), best, self.median_us)

    def score(self, times_us: Sequence[float | None], budget: int) -> float:
        """P over the first `budget` measurements."""
        random = self.random_us[:budget]
        gain = (random - self.best_so_far(times_us, budget)) / np.maximum(random - self.best_us, 1e-9 * self.best_us)
        return float(gain.mean())

    def fraction(self, times_us: Sequence[float | None], budget: int) -> float:
        """Best time of the space over the best found; 0 where nothing ran."""
        ran = [t for t in times_us[:budget] if t is not None]
        return self.best_us / min(ran) if ran else 0.0


def _expected_best(times: np.ndarray, rows: int, k: int, otherwise: float) -> float:
    """E[best of k distinct rows]: of the sorted times the i-th is the best with probability C(rows-i-1, k-1) / C(rows, k);
    `otherwise` where no row with a time is among them.
    """
    if k >= rows:
        return float(times[0])
    i = np.arange(len(times))
    left = rows - i - 1
    possible = left >= k - 1
    log_chance = _log_choose(left[possible], k - 1) - _log_choose(np.array([rows]), k)
    chance = np.exp(log_chance)
    return float(chance @ times[possible] + max(0.0, 1.0 - chance.sum()) * otherwise)


def _log_choose(n: np.ndarray, k: int) -> np.ndarray:
    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0))
