"""A ledger of measurements: whatever is measured through it is on disk before anyone acts on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import schema, store
from datasets.device import Device
from datasets.measurement import Candidate, Measurement
from pipeline.measure.measurer import Measurer
from templates.knob import config_text
from templates.workload import Workload


class Ledger:
    """A measurer that writes every result to disk before anyone sees it, remembers it, and counts what was spent.

    A run that continues finds there what was measured before it was killed; asking again is free, but counts as it did then.
    """

    def __init__(self, measurer: Measurer, root: Path) -> None:
        self.measurer, self.root = measurer, root
        self.rows: dict[tuple[str, str], Measurement] = {}
        if root.is_dir():
            for _, row in store.load(root).iterrows():
                measurement = schema.measurement_of(row)
                self.rows[str(measurement.workload), config_text(measurement.config)] = measurement
        self.spent: dict[tuple[str, str], None] = {}
        self.pools: dict[Workload, Sequence[dict[str, int]] | None] = {}

    @property
    def source(self) -> str:
        """That of the measurer behind."""
        return self.measurer.source

    @property
    def device(self) -> Device:
        """That of the measurer behind."""
        return self.measurer.device

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        """As the measurer behind has it; asked once per workload."""
        if workload not in self.pools:
            self.pools[workload] = self.measurer.known(workload)
        return self.pools[workload]

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """One measurement per candidate, in order."""
        keys = [(str(c.workload), config_text(c.config)) for c in candidates]
        new = {key: c for key, c in zip(keys, candidates, strict=True) if key not in self.rows}
        answers = self.measurer.measure(list(new.values()))
        for key in keys:
            if key not in self.rows:
                measurement = next(answers)
                store.append(self.root, [measurement])
                self.rows[key] = measurement
            self.spent[key] = None
            yield self.rows[key]

    def paid(self) -> list[Measurement]:
        """What was measured and counted, in the order it was first asked for."""
        return [self.rows[key] for key in self.spent]

    def forget_after(self, spent: int) -> None:
        """Count only the first `spent` rows: the others belong to a round that did not end and will be asked for again."""
        self.spent = dict.fromkeys(list(self.rows)[:spent])

    def close(self) -> None:
        """Closes the measurer behind."""
        self.measurer.close()
