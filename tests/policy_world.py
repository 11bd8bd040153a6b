"""Small worlds for the tests of the policy: a cost model by formula, scenes, and a policy small enough to train in seconds."""

from dataclasses import replace

import numpy as np

from datasets.device import H200, Device
from datasets.episodes import Episodes, concatenate
from datasets.measurement import Candidate
from datasets.schema import frame_of
from pipeline.measure.fake import FakeMeasurer
from pipeline.policy import action, behaviour, state
from pipeline.policy.env import EpisodeSettings, Scene, Search
from pipeline.policy.iql_settings import IqlSettings
from pipeline.policy.reward import RewardSettings
from pipeline.policy.world import SimulatedWorld, WorldSettings
from templates import space
from templates.knob import Columns
from templates.template import load_template
from templates.workload import Workload

TEMPLATE = load_template("matmul")
SMALL = TEMPLATE.workload(M=512, N=512, K=512)
LARGE = TEMPLATE.workload(M=4096, N=4096, K=4096)
ODD = TEMPLATE.workload(M=1537, N=2049, K=1025)
LAYOUT = state.layout(["matmul"], use_source=False)
VOCAB = action.vocabulary(["matmul"])
TINY = IqlSettings(steps=40, batch=32, hidden=[32, 32], checkpoint_every=20, threads=1, learning_rate=1e-3)


class Formula:
    """A cost model with three members that disagree a little: each prefers its own mix of knob positions."""

    def __init__(self, members: int = 3) -> None:
        rng = np.random.default_rng(0)
        common = rng.normal(size=len(TEMPLATE.knobs))
        self.weights = np.stack([common + 0.1 * rng.normal(size=len(TEMPLATE.knobs)) for _ in range(members)])
        self.calls = 0

    def log_time(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        self.calls += 1
        return 3.0 + 0.3 * self.weights @ action.positions(TEMPLATE, configs).T

    def failure_probability(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        return np.zeros(len(configs["block_m"]))


def scene(workload: Workload = LARGE, guide: Formula | None = None) -> Scene:
    return Scene(TEMPLATE, workload, H200, guide or Formula(), LAYOUT, VOCAB)


def configs(n: int, workload: Workload = LARGE, seed: int = 0) -> list[dict[str, int]]:
    return space.sample(TEMPLATE, workload, H200.limits, n, np.random.default_rng(seed))


def simulated(workload: Workload = LARGE, seed: int = 0, settings: WorldSettings | None = None) -> SimulatedWorld:
    rng = np.random.default_rng(seed)
    return SimulatedWorld(Formula(), TEMPLATE, workload, H200, settings or WorldSettings(), rng)


def search(n: int = 8, seed: int = 0, world: WorldSettings | None = None, **episode: int) -> Search:
    made = simulated(seed=seed, settings=world)
    settings = replace(EpisodeSettings(steps=6), **episode)  # type: ignore[arg-type]
    return Search(scene(), made, configs(n, seed=seed), settings, RewardSettings(), np.random.default_rng(seed))


def some_episodes(searches: int = 6, n: int = 8) -> Episodes:
    parts = []
    for seed in range(searches):
        way = behaviour.Blind() if seed % 2 else behaviour.NoisyGreedy()
        parts.append(behaviour.run(search(n, seed), way, np.random.default_rng(seed)))
    return concatenate(parts)


def measured_frame(n: int = 40, workloads: tuple[Workload, ...] = (SMALL, LARGE)):  # type: ignore[no-untyped-def]
    candidates = [Candidate(w, config) for i, w in enumerate(workloads) for config in configs(n, w, seed=i)]
    return frame_of(FakeMeasurer(H200).measure(candidates))
