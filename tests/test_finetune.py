"""Fine-tuning: within its budget, over any measurer, nothing lost when killed, evaluation shapes never learnt from."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datasets import split, store
from datasets.device import H200
from datasets.episodes import Episodes
from pipeline.finetuning import FinetuneSettings, Subject, Tuner, finetune
from pipeline.ledger import Ledger
from pipeline.measure.fake import FakeMeasurer
from pipeline.measure.measurer import Measurer
from pipeline.measure.replay import Replay
from pipeline.policy.env import EpisodeSettings
from pipeline.policy.iql import Policy
from pipeline.policy.propose import ProposeSettings
from pipeline.strategies.known_good import known_good
from templates.errors import InputError
from templates.workload import Workload
from tests.policy_world import LARGE, LAYOUT, SMALL, TEMPLATE, TINY, VOCAB, measured_frame, some_episodes
from tests.test_pretrain import frame, model

WATCHED = split.workloads("matmul")["validation"][:1]
SETTINGS = FinetuneSettings(
    measurements=40,
    episodes=3,
    updates=3,
    refit_every=2,
    episode=EpisodeSettings(steps=4, measurements=2),
    propose=ProposeSettings(rollouts=8, steps=2, evaluations=40, random_starts=16, known_good=2),
)


def offline() -> Episodes:
    return some_episodes(2, 4)


def tuner(folder: Path, measurer: Measurer | None = None, settings: FinetuneSettings = SETTINGS, seed: int = 0) -> Tuner:
    policy = Policy.create(LAYOUT, VOCAB, TINY, offline().states, 0, [str(SMALL), str(LARGE)])
    ledger = Ledger(measurer or FakeMeasurer(H200, fail_rate=0.1), folder / "measurements")
    known = known_good(frame(), TEMPLATE, top=4)
    subject = Subject(model(), known, [SMALL, LARGE], WATCHED)
    return Tuner(policy, [subject], ledger, offline(), settings, seed)


def weights(folder: Path) -> bytes:
    return (folder / "policy" / "networks.safetensors").read_bytes()


def test_stays_within_its_budget_and_keeps_every_row(tmp_path):
    result = finetune(tuner(tmp_path), tmp_path)
    rows = store.load(tmp_path / "measurements")
    assert 30 <= result.measurements == len(rows) <= 40
    assert result.rounds >= 2 and result.policy.steps == 3 * result.rounds
    assert sum(result.statuses.values()) == len(rows) and result.statuses.get("wrong_answer", 0) > 0


def test_table_compares_before_and_after_with_naive_and_expert(tmp_path):
    lines = finetune(tuner(tmp_path), tmp_path).lines
    assert [line.workload for line in lines] == [str(w) for w in (*WATCHED, SMALL, LARGE)]
    assert [line.split for line in lines] == ["validation", "train", "train"]
    for line in lines:
        times = [t for t in (line.naive_us, line.expert_us, line.before_us, line.after_us) if t is not None]
        assert line.best_us is not None and line.best_us <= min(times)


def test_open_world_measures_shapes_nearby_and_never_those_evaluated_on(tmp_path):
    made = tuner(tmp_path, settings=replace(SETTINGS, measurements=60, perturb_share=1.0))
    finetune(made, tmp_path)
    measured = {m.workload for m in made.ledger.paid()}
    assert len(measured - {SMALL, LARGE, *WATCHED}) >= 2
    lists = split.workloads("matmul")
    assert not measured & {*lists["test"], *lists["validation"][1:]}


def test_watched_shapes_are_not_learnt_from(tmp_path, monkeypatch):
    seen: list[set[str]] = []
    cls = type(model())
    real = cls.refit
    monkeypatch.setattr(cls, "refit", lambda self, rows, device: seen.append(set(rows["workload"])) or real(self, rows, device))
    finetune(tuner(tmp_path), tmp_path)
    assert seen and not {str(w) for w in WATCHED} & set().union(*seen)


def test_replay_answers_from_recorded_rows_only(tmp_path):
    recorded = measured_frame(30, (SMALL, LARGE, *WATCHED))
    made = tuner(tmp_path, Replay(recorded, H200), replace(SETTINGS, measurements=30))
    result = finetune(made, tmp_path)
    rows = store.load(tmp_path / "measurements")
    assert result.rounds >= 1 and set(rows["source"]) == {"replay"} and "illegal" not in set(rows["status"])
    assert set(rows["config"]) <= set(recorded["config"])


def test_same_seed_same_result_and_another_seed_another(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        finetune(tuner(tmp_path / name, seed=seed), tmp_path / name)
    assert weights(tmp_path / "one") == weights(tmp_path / "two") != weights(tmp_path / "other")


class Dying(FakeMeasurer):
    """Stops after a number of measurements, in the middle of a batch."""

    def __init__(self, after: int) -> None:
        super().__init__(H200, fail_rate=0.1)
        self.after = after

    def measure(self, candidates):  # type: ignore[no-untyped-def]
        for candidate in candidates:
            if not self.after:
                raise KeyboardInterrupt
            self.after -= 1
            yield from super().measure([candidate])


@pytest.mark.parametrize("after", [4, 17, 31])
def test_killed_run_loses_nothing_and_continues_to_the_same_policy(tmp_path, after):
    whole = finetune(tuner(tmp_path / "whole"), tmp_path / "whole")
    killed = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        finetune(tuner(killed, Dying(after)), killed)
    assert len(store.load(killed / "measurements")) == after
    counting = Dying(10**6)
    resumed = finetune(tuner(killed, counting), killed)
    assert weights(killed) == weights(tmp_path / "whole")
    assert resumed.lines == whole.lines and resumed.measurements == whole.measurements
    assert 10**6 - counting.after == whole.measurements - after  # nothing was measured twice


def test_a_closed_world_with_nothing_new_ends_the_run(tmp_path):
    recorded = measured_frame(4, (SMALL, LARGE, *WATCHED))
    result = finetune(tuner(tmp_path, Replay(recorded, H200), replace(SETTINGS, measurements=500)), tmp_path)
    assert result.measurements <= len(recorded)


def test_out_of_time_ends_with_a_table(tmp_path):
    result = finetune(tuner(tmp_path, settings=replace(SETTINGS, seconds=1e-6)), tmp_path)
    assert result.rounds == 0 and len(result.lines) == 3


def test_budget_of_nothing_is_refused():
    with pytest.raises(InputError, match="1 or more"):
        FinetuneSettings(measurements=0)


def test_ledger_counts_what_is_asked_and_asks_once(tmp_path):
    asked: list[str] = []

    class Counting(FakeMeasurer):
        def measure(self, candidates: Sequence):  # type: ignore[no-untyped-def, type-arg]
            asked.extend(str(c.workload) for c in candidates)
            return super().measure(candidates)

    made = tuner(tmp_path, Counting(H200))
    for _ in range(2):
        made.times_us([(SMALL, TEMPLATE.naive, "naive")])
    assert asked == [str(SMALL)] and len(made.ledger.spent) == 1
    again = Ledger(FakeMeasurer(H200), tmp_path / "measurements")
    assert not again.spent and next(iter(again.rows.values())).workload == Workload.parse(str(SMALL))
    assert np.isfinite(next(iter(again.rows.values())).time_us)
