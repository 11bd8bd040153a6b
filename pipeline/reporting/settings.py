"""What a report can be told."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReportSettings:
    """run: the folder of one run to report on, with those it stands on; empty: the last complete run of every stage.

    workload: on which the policy's decisions are shown; empty: the operator's first test workload.
    """

    run: str = ""
    workload: str = ""
