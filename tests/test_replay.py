"""Replay gives back what was recorded, the fake is a world worth searching in."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from datasets.device import H200
from datasets.measurement import Candidate, Measurement, Resources
from datasets.schema import frame_of
from pipeline.measure.fake import FakeMeasurer
from pipeline.measure.replay import Replay
from templates.space import sample
from templates.template import load_template

MATMUL = load_template("matmul")
W = MATMUL.workload(M=512, N=512, K=512)
OTHER = MATMUL.workload(M=64, N=64, K=64)
NAIVE, EXPERT = dict(MATMUL.naive), dict(MATMUL.expert(W))


def ok(us: float, config: dict[str, int], message: str = "") -> Measurement:
    return Measurement(
        W, config, "ok", message, time_us=us, samples_us=(us, us), gpu="NVIDIA H200", resources=Resources(32, 0, 0)
    )


def frame(rows: Sequence[Measurement]) -> pd.DataFrame:
    return frame_of(rows)


def test_a_recorded_row_comes_back_as_replay_with_the_askers_origin() -> None:
    replay = Replay(frame([ok(10.0, NAIVE), Measurement(W, EXPERT, "wrong_answer", "C: all zero")]), H200)
    first, second = replay.measure([Candidate(W, NAIVE, "policy"), Candidate(W, EXPERT, "policy")])
    assert (first.status, first.time_us, first.source, first.origin) == ("ok", 10.0, "replay", "policy")
    assert first.resources == Resources(32, 0, 0)
    assert (second.status, second.message, second.time_us) == ("wrong_answer", "C: all zero", None)


def test_known_lists_a_workloads_configs_once_and_no_other() -> None:
    rows = [ok(10.0, NAIVE), ok(11.0, NAIVE), ok(5.0, EXPERT), Measurement(W, {}, "ok", time_us=4.0, origin="vendor")]
    replay = Replay(frame(rows), H200)
    known = replay.known(W)
    assert sorted(map(str, known)) == sorted([str(dict(sorted(c.items()))) for c in (NAIVE, EXPERT)])
    assert replay.known(OTHER) == []
    (vendor,) = replay.measure([Candidate(W, {}, "vendor")])
    assert vendor.time_us == 4.0


@pytest.mark.parametrize(("times", "want"), [([30.0, 10.0, 20.0], 20.0), ([10.0, 40.0], 10.0), ([7.0], 7.0)])
def test_repeats_of_a_config_give_their_median_row(times: list[float], want: float) -> None:
    rows = [ok(us, NAIVE, f"row {us}") for us in times] + [Measurement(W, NAIVE, "contaminated")]
    (row,) = Replay(frame(rows), H200).measure([Candidate(W, NAIVE)])
    assert (row.time_us, row.message) == (want, f"row {want}")


def test_a_config_never_recorded_is_illegal_and_nothing_raises() -> None:
    for rows in ([], [ok(10.0, NAIVE)]):
        (row,) = Replay(frame(rows) if rows else pd.DataFrame(), H200).measure([Candidate(W, EXPERT)])
        assert (row.status, row.message, row.source) == ("illegal", "not among the recorded rows", "replay")


def test_the_fake_is_the_same_every_time_and_worth_searching() -> None:
    configs = sample(MATMUL, W, H200.limits, 200, np.random.default_rng(0))
    asked = [Candidate(W, config) for config in configs]
    first, second = (list(FakeMeasurer(H200).measure(asked)) for _ in range(2))
    assert [row.time_us for row in first] == [row.time_us for row in second]
    times = np.array([row.time_us for row in first], dtype=float)
    assert np.isfinite(times).all() and times.max() / times.min() > 2
    assert list(FakeMeasurer(H200, seed=1).measure(asked))[0].time_us != first[0].time_us
    best = configs[int(times.argmin())]
    assert any(best[k.name] not in (k.values[0], k.values[-1]) for k in MATMUL.knobs), "the optimum lies inside"


def test_the_fake_fails_and_refuses_as_told() -> None:
    configs = sample(MATMUL, W, H200.limits, 200, np.random.default_rng(0))
    rows = list(FakeMeasurer(H200, fail_rate=0.3).measure([Candidate(W, config) for config in configs]))
    share = np.mean([row.status == "wrong_answer" for row in rows])
    assert 0.2 < share < 0.4
    (row,) = FakeMeasurer(H200).measure([Candidate(W, {**NAIVE, "thread_m": 16})])
    assert row.status == "illegal" and row.message
    noisy = FakeMeasurer(H200, noise=0.1)
    a, b = noisy.measure([Candidate(W, NAIVE)] * 2)
    assert a.time_us != b.time_us
