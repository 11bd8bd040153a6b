"""Guided search: it learns, it explores, it never proposes twice."""

from dataclasses import replace

import numpy as np
import pytest

from datasets import schema
from datasets.device import H200
from datasets.measurement import Candidate, Measurement
from pipeline.archive import Archive
from pipeline.measure.fake import FakeMeasurer
from pipeline.search import GuidedSearch, GuidedSettings
from pipeline.strategy import Task
from templates import space
from templates.template import load_template
from templates.workload import Workload

TEMPLATE = load_template("matmul")
SMALL = TEMPLATE.workload(M=512, N=512, K=512)
WIDE = TEMPLATE.workload(M=256, N=2048, K=512)
QUICK = GuidedSettings(trees=40, depth=6, fresh=64, evaluations=600, threads=1)


def measured(workload: Workload, n: int, seed: int = 0, fail_rate: float = 0.0) -> list[Measurement]:
    configs = space.sample(TEMPLATE, workload, H200.limits, n, np.random.default_rng(seed))
    return list(FakeMeasurer(H200, fail_rate=fail_rate).measure([Candidate(workload, c) for c in configs]))


def archive(*groups: list[Measurement]) -> Archive:
    found = Archive(TEMPLATE, H200)
    for group in groups:
        found.add(group)
    return found


def propose(known: Archive, n: int, workload: Workload = SMALL, seed: int = 1, pool: list[dict[str, int]] | None = None):
    task = Task(TEMPLATE, workload, H200, None if pool is None else tuple(pool))
    return GuidedSearch(known, QUICK).propose(task, (), n, np.random.default_rng(seed))


def test_its_proposals_beat_random_configs_by_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.measure.fake.SPREAD", 0.02)  # nearly all of a time can be learnt
    random = measured(SMALL, 150)
    fake = FakeMeasurer(H200)
    times = np.array([fake.true_us(SMALL, c) for c in propose(archive(random), 24)])
    at_random = np.array([m.time_us for m in random], dtype=float)
    assert np.mean(times < np.quantile(at_random, 0.1)) > 0.5
    assert times.min() < np.quantile(at_random, 0.02)


def test_proposals_are_legal_distinct_and_new() -> None:
    random = measured(SMALL, 60, fail_rate=0.3)
    known = archive(random)
    chosen = propose(known, 32)
    keys = [known.key(c) for c in chosen]
    assert len(set(keys)) == 32
    assert not any(known.knows(SMALL, c) for c in chosen)
    assert all(space.violations(TEMPLATE, c, SMALL, H200.limits) == [] for c in chosen)


def test_the_same_seed_proposes_the_same() -> None:
    random = measured(SMALL, 60)
    assert propose(archive(random), 16, seed=5) == propose(archive(random), 16, seed=5)
    assert propose(archive(random), 16, seed=5) != propose(archive(random), 16, seed=6)


def test_with_nothing_measured_the_expert_comes_first() -> None:
    expert = space.canonical_config(TEMPLATE, TEMPLATE.expert(SMALL))
    chosen = propose(archive(), 8)
    assert chosen[0] == expert
    assert len(chosen) == 8


def test_a_new_workload_starts_from_what_others_taught() -> None:
    chosen = propose(archive(measured(WIDE, 200)), 8)
    fake = FakeMeasurer(H200)
    at_random = [fake.true_us(SMALL, m.config) for m in measured(SMALL, 100)]
    assert np.median([fake.true_us(SMALL, c) for c in chosen]) < np.median(at_random)


def test_a_closed_world_is_never_left_and_runs_out() -> None:
    rows = measured(SMALL, 40)
    pool = [m.config for m in rows]
    known = archive(rows[:30])
    chosen = propose(known, 32, pool=pool)
    assert sorted(map(known.key, chosen)) == sorted(known.key(m.config) for m in rows[30:])


def test_claimed_configs_are_not_proposed_until_their_outcome_is_known() -> None:
    known = archive(measured(SMALL, 60))
    first = propose(known, 8)
    known.claim(SMALL, first)
    assert not {known.key(c) for c in propose(known, 8)} & {known.key(c) for c in first}
    known.add(FakeMeasurer(H200).measure([Candidate(SMALL, c, "guided") for c in first]))
    assert known.claimed(SMALL) == 0
    assert known.count(SMALL, "guided") == 8


def test_contaminated_rows_teach_nothing_and_may_be_measured_again() -> None:
    good = measured(SMALL, 2)
    known = archive([good[0], replace(good[1], status="contaminated", time_us=None)])
    assert known.count(SMALL) == 1
    assert not known.knows(SMALL, good[1].config)


def test_rows_of_another_template_version_are_not_mixed_in() -> None:
    rows = measured(SMALL, 4)
    known = Archive(TEMPLATE, H200)
    known.add_frame(schema.frame_of([*rows[:3], replace(rows[3], template_version="older")]))
    assert known.count(SMALL) == 3


def test_a_frame_teaches_what_its_measurements_teach() -> None:
    rows = measured(SMALL, 20, fail_rate=0.3)
    rows = [replace(m, template_version=TEMPLATE.version) for m in rows]
    rows.append(Measurement(SMALL, {}, "ok", time_us=12.0, origin="vendor", template_version=TEMPLATE.version))
    direct, framed = archive(rows), Archive(TEMPLATE, H200)
    framed.add_frame(schema.frame_of(rows))
    for x, y in zip(direct.table(SMALL), framed.table(SMALL), strict=True):
        np.testing.assert_array_equal(x, y)
    assert direct.vendor_us == framed.vendor_us == {SMALL: 12.0}


def test_targets_are_centred_on_random_rows_so_that_workloads_compare() -> None:
    guided = [replace(m, origin="guided", time_us=0.001) for m in measured(SMALL, 5, seed=9) if m.time_us is not None]
    _, targets = archive(measured(SMALL, 30), guided).table(SMALL)
    assert targets[:30].mean() == pytest.approx(0.0, abs=1e-9)
