"""Implicit Q-learning by d3rlpy, as this project uses it: built from settings, trained on arrays, kept without pickles.

The only importer of d3rlpy, which takes seconds to load: import this module where a policy is made, not where one is passed
on. Kostrikov, Nair, Levine: Offline Reinforcement Learning with Implicit Q-Learning, arXiv:2110.06169.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gym_notices import notices
from safetensors.torch import load_file, save

from datasets.episodes import Episodes
from pipeline.policy.action import Vocabulary
from pipeline.policy.iql_settings import IqlSettings
from pipeline.policy.reward import RewardSettings, normalised
from pipeline.policy.state import Layout
from pipeline.run_folder import write_json
from templates.errors import InputError

notices.notices.clear()  # d3rlpy imports gym, which would print an advertisement for its successor

import d3rlpy  # noqa: E402
from d3rlpy.algos import IQL, IQLConfig  # noqa: E402
from d3rlpy.dataset import TransitionMiniBatch  # noqa: E402
from d3rlpy.models.encoders import VectorEncoderFactory  # noqa: E402

FORMAT = 1
CLIP = 8.0
"""Standardised states are cut here: a shape far outside the training set must not drive the network to nonsense."""

Losses = dict[str, float]


class Policy:
    """Actor, critics and value network over a named state and action; states come raw, standardisation is inside.

    `workloads`: texts of all that it was taught on, so that nobody judges it on one of them.
    """

    def __init__(
        self,
        layout: Layout,
        vocab: Vocabulary,
        settings: IqlSettings,
        mean: np.ndarray,
        scale: np.ndarray,
        seed: int = 0,
        workloads: Sequence[str] = (),
    ) -> None:
        self.layout, self.vocab, self.settings, self.mean, self.scale = layout, vocab, settings, mean, scale
        self.workloads = tuple(workloads)
        self.steps = 0
        torch.set_num_threads(settings.threads)
        seed_everything(seed)
        encoder = VectorEncoderFactory(hidden_units=list(settings.hidden))
        config = IQLConfig(
            actor_learning_rate=settings.learning_rate,
            critic_learning_rate=settings.learning_rate,
            actor_encoder_factory=encoder,
            critic_encoder_factory=encoder,
            value_encoder_factory=encoder,
            batch_size=settings.batch,
            gamma=settings.gamma,
            expectile=settings.expectile,
            weight_temp=settings.weight_temp,
        )
        self.algo: IQL = config.create(device="cpu:0")
        self.algo.create_impl((layout.size,), vocab.size)

    @staticmethod
    def create(
        layout: Layout, vocab: Vocabulary, settings: IqlSettings, states: np.ndarray, seed: int, workloads: Sequence[str] = ()
    ) -> "Policy":
        """A new policy whose standardisation fits these states (n, d). It stays as it is from then on."""
        spread = states.std(axis=0, dtype=np.float64)
        scale = np.where(spread > 1e-3, spread, 1.0)
        return Policy(layout, vocab, settings, states.mean(axis=0, dtype=np.float64), scale, seed, workloads)

    # Acting

    def sample_actions(self, states: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        """n draws per state from the actor's Gaussian, cut to [-1, 1]; float32 (states, n, a). Reproducible by `rng`."""
        mean, std = self._gaussian(states)
        noise = rng.standard_normal((len(states), n, self.vocab.size), dtype=np.float32)
        drawn: np.ndarray = np.clip(mean[:, None] + std * noise, -1, 1)
        return drawn

    def q(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The critics' mean value of actions (n, a) in states (n, d); float (n,), in normalised reward."""
        value: np.ndarray = self.algo.predict_value(self._scaled(states), actions.astype(np.float32))
        return value

    def value(self, states: np.ndarray) -> np.ndarray:
        """What is still to be gained from states (n, d); float (n,), in normalised reward."""
        modules: Any = self._impl.modules
        with torch.no_grad():
            gain: np.ndarray = modules.value_func(torch.from_numpy(self._scaled(states))).numpy()[:, 0]
        return gain

    def _gaussian(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            out = self._impl.policy(torch.from_numpy(self._scaled(states)))
        return out.squashed_mu.numpy(), out.logstd.exp().numpy()

    @property
    def _impl(self) -> Any:
        return self.algo.impl

    def _scaled(self, states: np.ndarray) -> np.ndarray:
        if states.shape[1] != self.layout.size:
            raise InputError(f"a state of {states.shape[1]} numbers, not {self.layout.size}; run `make pretrain` again")
        scaled: np.ndarray = np.clip((states - self.mean) / self.scale, -CLIP, CLIP).astype(np.float32)
        return scaled

    # Learning

    def prepare(self, episodes: Episodes, settings: RewardSettings) -> "Prepared":
        """Episodes ready to be drawn from: states standardised, rewards normalised. InputError where there are none."""
        if not len(episodes):
            raise InputError("no episodes to learn from: raise the number of workloads or episodes")
        return Prepared(
            self._scaled(episodes.states),
            episodes.actions.astype(np.float32),
            normalised(episodes.rewards, episodes.operator, settings)[:, None],
            self._scaled(episodes.next_states),
            episodes.terminals.astype(np.float32)[:, None],
        )

    def train(
        self,
        episodes: "Prepared",
        steps: int,
        seed: int,
        fresh: "Prepared | None" = None,
        fresh_share: float = 0.5,
        after_step: Callable[[int, Losses], None] | None = None,
    ) -> Losses:
        """Gradient steps until `self.steps` has grown by `steps`; mean losses.

        Batch number i depends on the seed and i alone, so that a run continued from a checkpoint ends as one that was never
        interrupted. With `fresh` episodes, `fresh_share` of every batch comes from them.
        """
        share = 0 if fresh is None else round(fresh_share * self.settings.batch)
        total: Losses = {}
        for _ in range(steps):
            rng = np.random.default_rng([seed, self.steps])
            parts = [episodes.draw(self.settings.batch - share, rng)]
            if fresh is not None and share:
                parts.append(fresh.draw(share, rng))
            losses = {name: float(value) for name, value in self.algo.update(_batch(parts)).items()}
            self.steps += 1
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value / steps
            if after_step is not None:
                after_step(self.steps, losses)
        if not np.isfinite(list(total.values())).all():
            raise AssertionError(f"training diverged: {total}")
        return total

    # Keeping

    def save(self, folder: Path) -> None:
        """Write networks and optimiser states (safetensors) and what they mean (JSON), each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.contiguous().clone() for name, value in self._state().items()}
        scratch = folder / ".networks.tmp"
        scratch.write_bytes(save(tensors, metadata={"steps": str(self.steps)}))  # ours to write: a full disk is an OSError
        scratch.replace(folder / "networks.safetensors")
        about = {
            "format": FORMAT,
            "d3rlpy": d3rlpy.__version__,
            "steps": self.steps,
            "settings": asdict(self.settings),
            "layout": asdict(self.layout),
            "knobs": self.vocab.knobs,
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "workloads": self.workloads,
            "state": self.layout.names(),
            "action": self.vocab.names(),
        }
        write_json(folder / "policy.json", about)

    @staticmethod
    def load(folder: Path) -> "Policy":
        """Read what `save` wrote; InputError where it is missing, damaged or of another format."""
        try:
            about = json.loads((folder / "policy.json").read_text())
            tensors = load_file(folder / "networks.safetensors")
        except Exception as error:  # safetensors raises its own type, which it does not export
            raise InputError(f"policy {folder}: cannot be read ({error}); run `make pretrain` again") from error
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise InputError(f"policy {folder}: not of format {FORMAT}; run `make pretrain` again")
        try:
            layout = Layout(**{name: tuple(value) for name, value in about["layout"].items()})
            vocab = Vocabulary(tuple(about["knobs"]))
            scaling = np.array(about["mean"]), np.array(about["scale"])
            policy = Policy(layout, vocab, IqlSettings(**about["settings"]), *scaling, workloads=about["workloads"])
            policy._restore(tensors)
            policy.steps = int(tensors["steps"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"policy {folder}: damaged ({reason}); run `make pretrain` again") from error
        return policy

    def _state(self) -> dict[str, torch.Tensor]:
        """Every tensor of networks and optimisers by name."""
        modules = self._impl.modules
        state = {"steps": torch.tensor(self.steps)}
        for name, module in modules.get_torch_modules().items():
            state |= {f"{name}/{key}": value for key, value in module.state_dict().items()}
        for name in ("actor_optim", "critic_optim"):
            for index, slots in getattr(modules, name).optim.state_dict()["state"].items():
                state |= {f"{name}/{index}/{slot}": torch.as_tensor(value) for slot, value in slots.items()}
        return state

    def _restore(self, tensors: dict[str, torch.Tensor]) -> None:
        modules = self._impl.modules
        for name, module in modules.get_torch_modules().items():
            module.load_state_dict({key: tensors[f"{name}/{key}"] for key in module.state_dict()})
        for name in ("actor_optim", "critic_optim"):
            optim = getattr(modules, name).optim
            slots: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"{name}/"):
                    _, index, slot = key.split("/")
                    slots.setdefault(int(index), {})[slot] = value
            optim.load_state_dict({"state": slots, "param_groups": optim.state_dict()["param_groups"]})


@dataclass(frozen=True)
class Prepared:
    """What `Policy.prepare` makes; float32, rewards and terminals of shape (n, 1)."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminals: np.ndarray

    def draw(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """n transitions, with replacement, in the order of the fields."""
        rows = rng.integers(len(self.rewards), size=n)
        return [self.states[rows], self.actions[rows], self.rewards[rows], self.next_states[rows], self.terminals[rows]]


def _batch(parts: list[list[np.ndarray]]) -> TransitionMiniBatch:
    """d3rlpy's batch without its replay buffer, which builds every batch row by row in Python."""
    states, actions, rewards, next_states, terminals = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TransitionMiniBatch(
        observations=states,
        actions=actions,
        rewards=rewards,
        next_observations=next_states,
        next_actions=np.zeros_like(actions),  # IQL never looks at them
        terminals=terminals,
        intervals=np.ones_like(rewards),
        transitions=[],
    )


def seed_everything(seed: int) -> None:
    """torch, numpy, random and d3rlpy."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    d3rlpy.seed(seed % 2**32)
