"""Where the policy's decisions come from: a search on one workload, what the policy sees beside what it chooses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from cost_model.features import GROUPS
from cost_model.model import CostModel
from datasets import split
from pipeline.policy import action
from pipeline.policy.action import Choice, Moves
from pipeline.policy.env import EpisodeSettings, Scene, Search
from pipeline.policy.reward import RewardSettings
from pipeline.policy.world import Remembered, config_at
from pipeline.reporting.drawing import BLUE, MUTED, VERMILION, figure
from pipeline.reporting.section import Picture, Section, Table
from pipeline.reporting.sources import Material
from templates.knob import CATEGORIES, config_text
from templates.space import canonical_config
from templates.workload import Workload

if TYPE_CHECKING:
    from pipeline.policy.iql import Policy

DRAWN = 64
"""Actions drawn from the actor per decision."""
SHOWN = 16


@dataclass(frozen=True)
class Option:
    """One choice the actor proposes: in words, the share of draws that mean it, the critics' value of it (normalised reward)."""

    text: str
    share: float
    q: float
    vector: np.ndarray


@dataclass(frozen=True)
class Decision:
    """One step: the state (d,) as seen, what is still to be gained by the value network, the options, best first."""

    state: np.ndarray
    value: float
    options: list[Option]


def section(material: Material) -> Section:
    """The search's decisions, what the first one rests on, and the whole state vector."""
    from pipeline.policy.iql import Policy  # loads PyTorch and d3rlpy: seconds

    trained = [material.runs[stage] for stage in ("finetune", "pretrain") if stage in material.runs]
    run = next((run for run in trained if (run.folder / "policy" / "policy.json").exists()), None) or material.run("pretrain")
    policy = Policy.load(run.folder / "policy")
    model = CostModel.load(material.run("fit").folder / "cost_model")
    workload = chosen(material)
    scene = Scene(material.template, workload, material.device, Remembered(model, material.template), policy.layout, policy.vocab)
    start = canonical_config(material.template, material.template.expert(workload))
    found = decide(policy, scene, start, np.random.default_rng([material.seed, 5]))
    first, names = found[0], policy.layout.names()
    weights = occlusion(policy, first)
    order = np.argsort(-np.abs(weights))[:SHOWN]
    lead = (
        f"The policy of {run.folder.parent.name}/{run.folder.name} on {workload}, from the expert config, with nothing measured. "
        f"At each step {DRAWN} actions are drawn from the actor; of those the one that the critics value most is taken."
    )
    header = ["step", "chosen", "share of draws", "value Q", "still to gain, V", "runners-up (Q)"]
    steps = Table("Decisions of one search", header, [_step(i, decision) for i, decision in enumerate(found, 1)], fold=False)
    vector = [
        [name, _group(name), f"{value:.4g}", f"{mean:.4g}", f"{weight:+.4f}"]
        for name, value, mean, weight in zip(names, first.state, policy.mean, weights, strict=True)
    ]
    header = ["feature", "group", "value", "training mean", "weight in the choice"]
    table = Table("The whole state at the first step", header, vector)
    against = f"{first.options[0].text} over {first.options[1].text}" if len(first.options) > 1 else first.options[0].text
    alt = f"The {len(order)} features that weigh most in choosing {against}; {names[order[0]]} weighs most."
    title = f"What the first choice rests on: {against}"
    picture = Picture("decision", title, alt, _bars(names, first.state, weights, order), table)
    note = (
        "Weight: how much the lead of the chosen action over the runner-up (in Q) shrinks when that feature alone is set to its "
        "mean over the training states (occlusion); above 0 the feature speaks for the choice. It says what the networks look "
        "at, not what is true of the GPU. Configs that are measured come from this policy, the cost model and other shapes' "
        "best configs together."
    )
    notes = [note, f"Start: {config_text(start)}"]
    return Section("decisions", "Where the policy's decisions come from", lead, [picture], [steps], notes)


def chosen(material: Material) -> Workload:
    """The workload that was asked for, or else the first test workload."""
    if material.workload:
        return material.template.check_workload(Workload.parse(material.workload))
    return split.workloads(material.template.op)["test"][0]


def decide(policy: "Policy", scene: Scene, start: dict[str, int], rng: np.random.Generator) -> list[Decision]:
    """The decisions of one search, until it would measure or its steps are used up."""
    search = Search(scene, None, [start], EpisodeSettings(), RewardSettings(), rng)
    row, found = np.zeros(1, dtype=int), []
    for _ in range(search.settings.steps):
        moves = search.moves(row)
        state, options, choices = search.states(row)[0], [], []
        drawn = policy.sample_actions(state[None], DRAWN, rng)[0]
        counted: dict[tuple[bool, int], int] = {}
        for vector in drawn:
            choice = action.decode(scene.vocab, vector[None], moves, search.may_measure(row))
            key = bool(choice.measure[0]), -1 if choice.measure[0] else int(choice.move[0])
            counted[key] = counted.get(key, 0) + 1
        for (measure, move), count in counted.items():
            choice = Choice(np.array([measure]), np.array([max(move, 0)]))
            vector = action.encode(scene.vocab, moves, search.at(row), choice)[0]
            q = float(policy.q(state[None], vector[None])[0])
            options.append(Option(_words(moves, choice, config_at(search.columns, 0)), count / DRAWN, q, vector))
            choices.append(choice)
        order = sorted(range(len(options)), key=lambda i: -options[i].q)
        found.append(Decision(state, float(policy.value(state[None])[0]), [options[i] for i in order]))
        best = choices[order[0]]
        if best.measure[0]:
            break
        search.edit(row, moves, best.move)
        search.memory.steps[row] += 1
    return found


def occlusion(policy: "Policy", decision: Decision) -> np.ndarray:
    """Weight of each feature (d,): the drop of Q's lead over the runner-up when it is set to its training mean.

    Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, arXiv:1311.2901, section 4.2, for features.
    """
    n = len(decision.state)
    states = np.vstack([decision.state, np.tile(decision.state, (n, 1))]).astype(np.float32)
    states[np.arange(1, n + 1), np.arange(n)] = policy.mean
    lead = policy.q(states, np.tile(decision.options[0].vector, (n + 1, 1)))
    if len(decision.options) > 1:
        lead = lead - policy.q(states, np.tile(decision.options[1].vector, (n + 1, 1)))
    weights: np.ndarray = lead[0] - lead[1:]
    return weights


def _words(moves: Moves, choice: Choice, config: dict[str, int]) -> str:
    if choice.measure[0]:
        return "measure"
    s, move = moves.steps, int(choice.move[0])
    knob = s.template.knobs[int(s.knob[move])]
    return f"{CATEGORIES[int(s.category[move])]}: {knob.name} {config[knob.name]} -> {int(s.value[move])}"


def _step(number: int, decision: Decision) -> list[str]:
    best, others = decision.options[0], decision.options[1:4]
    runners = "; ".join(f"{option.text} ({option.q:.3f})" for option in others) or "-"
    return [str(number), best.text, f"{best.share:.0%}", f"{best.q:.3f}", f"{decision.value:.3f}", runners]


def _group(name: str) -> str:
    prefix = name.partition("_")[0]
    return GROUPS.get(prefix, "the operator" if prefix == "op" else "what the search knows by now")


def _bars(names: Sequence[str], state: np.ndarray, weights: np.ndarray, order: np.ndarray) -> Callable[[bool], Figure]:
    def draw(narrow: bool) -> Figure:
        made, axes = figure(narrow, 0.6 + 0.2 * len(order))
        values = weights[order]
        axes.barh(range(len(order)), values, color=[BLUE if value >= 0 else VERMILION for value in values], height=0.7)
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(order)), [f"{names[i]} = {state[i]:.3g}" for i in order], fontsize=6.5)
        axes.set(xlabel="weight in the choice", ylim=(len(order) - 0.4, -0.6))
        axes.grid(axis="x")
        return made

    return draw
