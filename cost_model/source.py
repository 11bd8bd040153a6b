"""Counts from the syntax tree of a rendered source, by libclang: what the code does, how often, how deeply it depends.

Every count comes twice: static, as written, and `w_`, weighted with the trip counts of the loops around it, where these are
constants. A loop over run-time bounds counts as one trip, so that weighted counts are per step of the main loop. Calls of
functions in the source are followed. Nothing here knows an operator or a knob.
"""

from functools import lru_cache

from cost_model.counting import Counting
from cost_model.counts import COUNTS, WHOLES

NAMES = (*COUNTS, *(f"w_{name}" for name in COUNTS), *WHOLES)
"""The features, always all of them; `counts` says what each is."""

CACHED_SOURCES = 4096


def source_features(source: str) -> dict[str, float]:
    """Every feature of `NAMES`. Raises `syntax.SourceError`, naming the line, where the source does not parse."""
    return dict(zip(NAMES, _values(source), strict=True))


@lru_cache(maxsize=CACHED_SOURCES)
def _values(source: str) -> tuple[float, ...]:
    features = Counting(source).features()
    return tuple(features[name] for name in NAMES)
