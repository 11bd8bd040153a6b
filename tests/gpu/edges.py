"""Random legal configs of an operator at their edge shapes on a real GPU: every element checked, nothing written outside.

    python -m tests.gpu.edges softmax [configs [jobs [dtype [compiler]]]]

also under `compute-sanitizer --tool memcheck --error-exitcode 9` (or racecheck, synccheck, initcheck). The last line counts; the
exit status is 1 where a kernel is wrong.
"""

import sys

import numpy as np

from pipeline.measure.build import BuildPool, Cubin
from pipeline.measure.check import Bench, Checker
from pipeline.measure.farm import CHECK_SOURCE
from pipeline.measure.gpu import Gpu
from pipeline.measure.settings import BuildSettings
from templates.knob import Config, config_text
from templates.render import render, render_reference
from templates.space import sample, violations
from templates.template import Template, load_template
from templates.workload import Workload


class Edges:
    """One operator and dtype on one GPU."""

    def __init__(self, template: Template, dtype: str, build: BuildSettings) -> None:
        self.template, self.dtype = template, dtype
        self.gpu = Gpu(0)
        device = self.gpu.describe()
        self.limits = device.limits
        major, minor = device.compute_capability
        self.pool = BuildPool(build, f"sm_{major}{minor}")
        self.checker = Checker(self.gpu, self._code(CHECK_SOURCE.read_text()).code)
        self.reference = self._code(render_reference(template, dtype)).code

    def _code(self, source: str) -> Cubin:
        made = self.pool.submit(source).result()
        assert isinstance(made, Cubin), made
        return made

    def draw(self, n: int, seed: int = 0) -> list[dict[str, int]]:
        """n random configs, drawn where they are legal: at one edge shape of the naive and one of the expert config."""
        rng = np.random.default_rng(seed)
        shapes = self._of_dtype(self.template.edge_shapes(self.template.naive))
        largest = max(shapes, key=self.template.flops)
        configs = sample(self.template, largest, self.limits, n, rng)
        for config in configs:
            self.pool.submit(render(self.template, config, self.dtype))
        return configs

    def _of_dtype(self, shapes: list[Workload]) -> list[Workload]:
        return [Workload(w.op, self.dtype, w.dims) for w in shapes]

    def problems(self, config: Config) -> tuple[int, list[str]]:
        """How many edge shapes the config was launched on, and what was wrong there."""
        made, found, launched = self._code(render(self.template, config, self.dtype)), [], 0
        for workload in self._of_dtype(self.template.edge_shapes(config)):
            if violations(self.template, config, workload, self.limits):
                continue
            launched += 1
            if problem := self._problem(made.code, config, workload):
                found.append(f"{workload} {config_text(config)}: {problem}")
        return launched, found

    def _problem(self, code: bytes, config: Config, workload: Workload) -> str:
        bench = Bench(self.checker, self.template, workload, self.reference)
        launch = self.template.launch(config, workload)
        workspace = bench.workspace(launch)
        try:
            kernel = self.gpu.kernel(code, self.template.entry, launch, bench.arguments(0, workspace))
            for _ in range(2 if workspace else 1):  # the first launch has to leave the workspace reusable
                bench.poison()
                self.gpu.launch(kernel)
            return bench.examine(0, workspace)[0]
        finally:
            if workspace is not None:
                self.checker.free(workspace)
            bench.close()


def main(op: str, n: str = "100", jobs: str = "16", dtype: str = "", compiler: str = "nvcc") -> int:
    """Check n configs; 1 where one is wrong."""
    template = load_template(op)
    launched, wrong, configs = 0, list[str](), 0
    for kind in [dtype] if dtype else template.dtypes:
        edges = Edges(template, kind, BuildSettings(jobs=int(jobs), compiler=compiler))
        for config in edges.draw(int(n)):
            count, found = edges.problems(config)
            launched, wrong, configs = launched + count, wrong + found, configs + 1
            print(*found, sep="\n", end="\n" if found else "", flush=True)
        edges.pool.close()
    print(f"{op}: {configs} configs, {launched} launches at edge shapes, {len(wrong)} wrong")
    return 1 if wrong or not launched else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
