"""A kernel in Kernel Tuner's style with a JSON beside it: an operator like any other, and clear words for a faulty one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_run
import numpy as np
import pytest

from cost_model.features import explain, matrix
from cost_model.model import CostModel, CostModelSettings
from datasets import split, store
from datasets.device import H200
from pipeline import collect, config, worlds
from pipeline.measure.fake import FakeMeasurer
from pipeline.measure.nvcc import BuildFailure, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings
from templates import space
from templates import template as templates
from templates.errors import InputError
from templates.expressions import Expression
from templates.render import render
from templates.template import Template, load_template

KERNEL = """
// y = alpha * x + y0, tile values a thread; C++ linkage, its own order of arguments
__global__ void __launch_bounds__(block_size_x) scale_add(float *y, int n, float alpha, float *x, float *y0)
{
#if use_shmem == 1
    __shared__ float part[block_size_x * tile];
#endif
    int first = blockIdx.x * block_size_x * tile + threadIdx.x;
    for (int i = 0; i < tile; i++) {
        int at = first + i * block_size_x;
        if (at < n) {
#if use_shmem == 1
            part[threadIdx.x + i * block_size_x] = x[at];
            y[at] = alpha * part[threadIdx.x + i * block_size_x] + y0[at];
#else
            y[at] = alpha * x[at] + y0[at];
#endif
        }
    }
}
"""
REFERENCE = """
extern "C" __global__ void reference(const float *x, const float *y0, double *reference, double *magnitude, int n)
{
    long i = blockIdx.x * 256L + threadIdx.x;
    if (i < n) {
        reference[i] = 2.5 * x[i] + y0[i];
        magnitude[i] = fabs(2.5 * x[i]) + fabs(y0[i]);
    }
}
"""
GIVEN: dict[str, Any] = {
    "kernel_name": "scale_add",
    "dims": ["N"],
    "problem_size": ["N"],
    "arguments": [
        {"name": "y", "role": "out", "type": "float32", "shape": ["N"]},
        {"name": "n", "type": "int32", "value": "N"},
        {"name": "alpha", "type": "float32", "value": 2.5},
        {"name": "x", "role": "in", "type": "float32", "shape": ["N"]},
        {"name": "y0", "role": "in", "type": "float32", "shape": ["N"]},
    ],
    "tune_params": {"block_size_x": [32, 64, 128, 256, 512, 2048], "tile": [1, 2, 4, 8], "use_shmem": [0, 1]},
    "restrictions": ["block_size_x * tile <= 1024", "use_shmem == 0 or tile > 1"],
    "grid_div_x": ["block_size_x", "tile"],
    "naive": {"block_size_x": 256, "tile": 1, "use_shmem": 0},
    "expert": {"tile": 4},
    "flops": "2 * N",
    "tolerance": 1e-6,
}
LISTS = {"train": [100000, 3000], "validation": [50000], "test": [70000]}


def make(root: Path, given: dict[str, Any], kernel: str = KERNEL) -> Path:
    folder = root / "templates" / "scale_add"
    folder.mkdir(parents=True)
    (folder / "kernel.cu").write_text(kernel)
    (folder / "reference.cu").write_text(REFERENCE)
    (folder / "kernel.json").write_text(json.dumps(given))
    return folder


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    """The operator in a folder of templates of its own, with a list of workloads."""
    make(tmp_path, GIVEN)
    conf = tmp_path / "conf"
    for group in ("gpu", "farm", "experiment"):
        (conf / group).parent.mkdir(exist_ok=True)
        (conf / group).symlink_to(config.CONF / group)
    (conf / "op").mkdir()
    (conf / "config.yaml").write_text((config.CONF / "config.yaml").read_text())
    lines = [f"{name}:\n" + "".join(f"  - scale_add/f32/N={n}\n" for n in sizes) for name, sizes in LISTS.items()]
    (conf / "op" / "scale_add.yaml").write_text("name: scale_add\n" + "".join(lines))
    (conf / "op" / "matmul.yaml").symlink_to(config.CONF / "op" / "matmul.yaml")
    monkeypatch.setattr(templates, "ROOT", tmp_path / "templates")
    monkeypatch.setattr(split, "CONF", conf / "op")
    monkeypatch.setattr(config.compose_config, "__defaults__", (conf,))
    load_template.cache_clear()
    yield load_template("scale_add")
    load_template.cache_clear()


def configs_of(template: Template) -> list[dict[str, int]]:
    return space.sample(template, template.workload(N=1000), H200.limits, 1000, np.random.default_rng(0))


def test_the_legal_space_is_what_the_file_says(template: Template) -> None:
    found = configs_of(template)
    wanted = [
        {"block_size_x": b, "tile": t, "use_shmem": s}
        for b in (32, 64, 128, 256, 512) for t in (1, 2, 4, 8) for s in (0, 1) if b * t <= 1024 and (s == 0 or t > 1)
    ]  # fmt: skip
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    why = space.violations(template, {"block_size_x": 2048, "tile": 1, "use_shmem": 1}, template.workload(N=10), H200.limits)
    assert why == [
        "the block has more threads than the GPU allows", "block_size_x * tile <= 1024", "use_shmem == 0 or tile > 1",
    ]  # fmt: skip
    assert template.launch({"block_size_x": 64, "tile": 2, "use_shmem": 0}, template.workload(N=1000)).grid == (8, 1, 1)
    assert template.expert(template.workload(N=5)) == {"block_size_x": 256, "tile": 4, "use_shmem": 0}


def test_every_config_is_right_on_the_cpu_and_guards_bite(template: Template) -> None:
    configs = configs_of(template)[:8]
    binary = cpu_run.compile_kernels(template, configs)
    rng, jobs, wanted = np.random.default_rng(0), [], []
    for i, chosen in enumerate(configs):
        for workload in template.edge_shapes(chosen):
            inputs = cpu_run.draw_inputs(template, workload, rng)
            jobs.append(cpu_run.job_of(template, i, chosen, workload, inputs))
            wanted.append(2.5 * inputs["x"] + inputs["y0"])
    for result, right in zip(binary.run(jobs), wanted, strict=True):
        assert not isinstance(result, cpu_run.KernelFault), result
        np.testing.assert_allclose(result["y"], right, rtol=1e-6)


def test_a_foreign_kernel_without_its_guard_is_caught(template: Template) -> None:
    template.source_path.write_text(KERNEL.replace("at < n", "at <= n"))
    workload = template.workload(N=33)
    with pytest.raises(cpu_run.KernelFault):
        cpu_run.run(template, template.naive, workload, cpu_run.draw_inputs(template, workload, np.random.default_rng(0)))


def test_it_compiles_for_a_gpu_and_features_follow_its_knobs(template: Template) -> None:
    source = render(template, {"block_size_x": 64, "tile": 4, "use_shmem": 1})
    assert "x + y0, tile values" in source and "#if use_shmem == 1" in source and "part[64 * 4]" in source
    assert "__launch_bounds__(64) scale_add_entry(float *x, float *y0, float *y, int n, void *workspace)" in source
    settings = BuildSettings()
    built = compile_cubin(find_nvcc(settings), source, "sm_90", settings.flags, 120.0)
    assert not isinstance(built, BuildFailure), built.message
    assert built.resources[template.entry].static_smem_bytes >= 4 * 64 * 4
    workload = template.workload(N=1000)
    one, other = (explain(template, workload, {**template.naive, "tile": tile}, H200) for tile in (1, 8))
    assert one["knob_tile"] != other["knob_tile"] and one["d_blocks"] != other["d_blocks"]
    assert one["ast_store_global_1"] == 1 and other["ast_w_store_global_1"] == 8 * one["ast_w_store_global_1"]
    assert np.isfinite(matrix(template, workload, configs_of(template), H200)).all()


def test_it_is_collected_and_modelled_like_any_operator(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = FakeMeasurer(H200)
    monkeypatch.setattr(worlds, "replays", lambda gpu, farm: False)
    monkeypatch.setattr(worlds, "open_farm", lambda gpu, farm, log_dir=None: machine)
    arguments = [f"outputs_dir={tmp_path / 'out'}", f"data_dir={tmp_path / 'data'}", f"recorded_dir={tmp_path / 'none'}"]
    more = ["collect.random=20", "collect.guided=4", "collect.vendor=false", "collect.guide.trees=10"]
    assert collect.main.run(["op=scale_add", *arguments, *more]) == 0, capsys.readouterr().err
    frame = store.load(tmp_path / "data", op="scale_add")
    assert set(frame["status"]) == {"ok"} and len(frame) >= 40 and set(frame["template_version"]) == {template.version}
    model = CostModel.fit(frame, H200, CostModelSettings(members=1, trees=30, threads=1))
    configs = configs_of(template)
    workload = template.workload(N=100000)
    truth = [np.log(machine.true_us(workload, c)) for c in configs]
    assert np.corrcoef(model.log_time(workload, space_columns(configs), H200)[0], truth)[0, 1] > 0.5


def space_columns(configs: list[dict[str, int]]) -> dict[str, np.ndarray]:
    return {name: np.array([c[name] for c in configs]) for name in configs[0]}


def test_measurements_of_another_wrapper_never_mix(template: Template, tmp_path: Path) -> None:
    changed = json.loads(json.dumps(GIVEN))
    changed["arguments"][2]["value"] = 3.0
    (template.source_path.parent / "kernel.json").write_text(json.dumps(changed))
    load_template.cache_clear()
    assert load_template("scale_add").version != template.version


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kernel_name": None}, "needs kernel_name"),
        ({"tune_parms": {}}, "tune_parms is unknown"),
        ({"tune_params": {"block_size_x": ["a"]}}, "tune_params.block_size_x: a list of integers"),
        ({"tune_params": {"bx": [1]}, "naive": {"bx": 1}, "restrictions": []}, "no parameter is a block size"),
        ({"naive": {"block_size_x": 7}}, "naive: block_size_x=7 is not one of"),
        ({"expert": {"tile": 3}}, "expert: tile=3 is not one of"),
        ({"restrictions": ["tile <"]}, "'tile <' is no expression"),
        ({"restrictions": ["tiel < 3"]}, "names tiel; known: block_size_x"),
        ({"restrictions": ["__import__('os')"]}, "names __import__"),
        ({"restrictions": ["tile ** 2 < 3"]}, "is not understood"),
        ({"arguments": []}, "none has the role out"),
        ({"arguments": [{"name": "y"}]}, "needs a name, and role"),
        ({"arguments": [{"name": "y", "role": "out", "type": "int8", "shape": ["N"]}]}, "type .float32, float64."),
        ({"arguments": [{"name": "y", "role": "out", "type": "float32", "shape": ["M"]}]}, "names M; known: N"),
        ({"categories": {"luck": ["tile"]}}, "category luck is unknown"),
    ],
)
def test_a_faulty_file_is_one_clear_line(change: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    from templates import foreign

    given = {key: value for key, value in {**GIVEN, **change}.items() if value is not None}
    folder = make(tmp_path, given)
    with pytest.raises(InputError, match=complaint) as raised:
        foreign.load(folder)
    assert "kernel.json" in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    from templates import foreign

    folder = make(tmp_path, GIVEN)
    (folder / "reference.cu").unlink()
    with pytest.raises(InputError, match="reference.cu: missing"):
        foreign.load(folder)
    (folder / "kernel.json").write_text("{")
    with pytest.raises(InputError, match="kernel.json: no JSON"):
        foreign.load(folder)


def test_expressions_are_the_same_for_numbers_and_columns() -> None:
    names = ("a", "b")
    columns = {"a": np.array([1, 2, 3, 4]), "b": np.array([4, 3, 0, 1])}
    logic = ("a <= b", "a < b and not b == 4 or a == 4", "1 < a <= 3", "a % 2 == 0")
    for text in ("a * b - 2", "min(a, b) + max(a, 2)", "-a // 2", *logic):
        found = Expression(text, names, "here")(columns)
        one_by_one = [eval(text, {"min": min, "max": max}, {n: int(columns[n][i]) for n in names}) for i in range(4)]
        assert np.asarray(found).tolist() == one_by_one, text
    assert not Expression("a % b == 1", names, "here")({"a": 3, "b": 0})
