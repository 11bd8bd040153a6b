"""Tables: aligned Markdown, and wins and losses counted as they are."""

from pipeline.records import Cell, Record
from pipeline.tables import Line, duels, duels_table, methods_table, table, workloads_table


def record(method: str, workload: str, fraction: float, k: int = 10) -> Record:
    return Record("matmul", workload, "test", method, k, 100.0, fraction, 2.0, "replay", 5, (fraction, fraction))


def test_columns_line_up() -> None:
    lines = table(["method", "k"], [["random", "0.5"], ["a", "10"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "|--------|----:|"
    assert lines[3] == "| a      |  10 |"


def test_methods_go_down_and_measurements_across() -> None:
    cells = [Cell("random", 0, 0.4, 0.3, 0.5, 0.1, "w", 1.0), Cell("policy", 0, 0.9, 0.85, 0.95, 0.8, "w", 0.0)]
    text = methods_table([*cells, Cell("policy", 10, 0.98, 0.97, 0.99, 0.95, "w", 0.0)])
    header, _, first, second = text.splitlines()
    assert header.index("k = 0") < header.index("k = 10")
    assert "0.400 [0.300 0.500] 0.100" in first and first.rstrip(" |").endswith("-")
    assert "0.980 [0.970 0.990] 0.950" in second


def test_workloads_show_microseconds_and_a_rate() -> None:
    text = workloads_table([Line("big", 1000.0, None, 100.0, 110.0, {0: 120.5, 10: None}, 2e9)])
    row = [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")]
    assert row == ["big", "1000", "-", "100", "120.5", "-", "110", "20.0"]


def test_wins_ties_and_losses_are_counted_per_workload() -> None:
    records = [
        *(record("policy", w, f) for w, f in (("a", 0.9), ("b", 0.9), ("c", 0.9), ("d", 0.0))),
        *(record("nearest", w, f) for w, f in (("a", 0.8), ("b", 0.903), ("c", 0.95), ("d", 0.0))),
    ]
    (duel,) = duels(records, "policy", tie=0.005)
    assert (duel.against, duel.wins, duel.ties, duel.losses) == ("nearest", 1, 2, 1)
    assert "1 / 2 / 1" in duels_table([duel])


def test_an_opponent_asked_only_at_zero_enters_with_that() -> None:
    records = [record("policy", "a", 0.9, 0), record("policy", "a", 0.99, 10), record("vendor", "a", 0.95, 0)]
    assert [(d.measurements, d.wins, d.losses) for d in duels(records, "policy", 0.005)] == [(0, 0, 1), (10, 1, 0)]
