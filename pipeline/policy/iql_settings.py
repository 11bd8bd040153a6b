"""Settings of the learner, apart from it: reading a configuration must not load PyTorch."""

from dataclasses import dataclass, field

from templates.errors import InputError


@dataclass(frozen=True)
class IqlSettings:
    """Hyperparameters. gamma 1: edit rewards telescope. A high expectile and temperature: one takes the best edit."""

    steps: int = 4000
    batch: int = 256
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    learning_rate: float = 3e-4
    expectile: float = 0.9
    weight_temp: float = 10.0
    gamma: float = 1.0
    checkpoint_every: int = 500
    threads: int = 2

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.checkpoint_every, self.threads, *self.hidden) < 1:
            raise InputError("iql: steps, batch, hidden, checkpoint_every and threads must be 1 or more")
        if not 0 < self.expectile < 1:
            raise InputError(f"iql.expectile={self.expectile}: use a value between 0 and 1, e.g. 0.9")
