# CUDA-Agent's front door: `make help`. ARGS carries Hydra overrides: make finetune ARGS="seed=1 gpu=replay".

OUTPUTS ?= outputs
VENV ?= .venv
# Address of an index to fetch PyTorch from; empty: pip's own. PyTorch's index of CPU builds saves gigabytes without a GPU.
TORCH_INDEX ?=
JOBS ?= 2
ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip -qq --disable-pip-version-check
READY := $(VENV)/.ready
OP := $(lastword all $(patsubst op=%,%,$(filter op=%,$(ARGS))))
STAGES := collect fit pretrain finetune evaluate
ONE_RUN := $(if $(filter command,$(origin RUN)),$(RUN))
override RUN = $(PY) -m $(1) outputs_dir=$(OUTPUTS) $(ARGS)

# Idle OpenMP threads sleep: spinning ones slow a machine down whose cores are taken.
export OMP_WAIT_POLICY = PASSIVE
export PYTHONUNBUFFERED = 1
MAKEFLAGS += --no-print-directory

$(if $(word 2,$(OUTPUTS))$(word 2,$(VENV)),$(error OUTPUTS and VENV: paths without spaces, please))

.DEFAULT_GOAL := help
.PHONY: help setup doctor $(STAGES) compile report features import-cache export-cache transfer test thorough lint format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo 'ARGS="key=value ..." overrides settings; make collect ARGS=--help lists them. Results: $(OUTPUTS)/<stage>/latest'

setup: $(READY)  ## everything that is needed, in .venv: Python packages and nvcc

# The first Python that serves; PYTHON=... picks another. Redone when the list of packages changes.
$(READY): pyproject.toml constraints.txt
	@python="$(PYTHON)"; for p in $$python python3.11 python3.12 python3; do \
	    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && found=$$p && break; done; \
	  [ -n "$$found" ] || { echo "setup: needs Python 3.11 or 3.12: install one, or make setup PYTHON=/path/to/it" >&2; exit 2; }; \
	  echo "setup: installs packages into $(VENV) with $$found (about 1.5 GB, some minutes)"; \
	  [ -x $(PY) ] && $(PY) -m pip --version >/dev/null 2>&1 || $$found -m venv --clear $(VENV) || \
	    { echo "setup: $$found cannot make a virtual environment: on Debian, apt-get install python3-venv" >&2; exit 2; }
	@$(PY) -c 'import tomllib; t = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*t["project"]["dependencies"], *t["dependency-groups"]["dev"], sep="\n")' > $(VENV)/requirements.txt
	@$(if $(TORCH_INDEX),$(PIP) install --no-deps --index-url $(TORCH_INDEX) $$(grep '^torch==' constraints.txt))
	@$(PIP) install -r $(VENV)/requirements.txt -c constraints.txt
	@touch $@

doctor: | $(READY)  ## look whether this machine can do the work: versions, GPU, disks; the cure for what cannot
	@$(call RUN,pipeline.doctor)

# A stage runs the ones before it when they have no complete run yet.
collect: | $(READY)  ## measure configs into Parquet (no GPU: check the recorded timings)
	@$(call RUN,pipeline.collect)

fit: | $(READY) $(OUTPUTS)/collect/latest-$(OP)  ## fit the cost model
	@$(call RUN,cost_model.fit)

pretrain: | $(READY) $(OUTPUTS)/fit/latest-$(OP)  ## train the policy against the cost model
	@$(call RUN,pipeline.pretrain)

finetune: | $(READY) $(OUTPUTS)/pretrain/latest-$(OP)  ## go on training it on real (or recorded) timings
	@$(call RUN,pipeline.finetune)

evaluate: | $(READY) $(OUTPUTS)/finetune/latest-$(OP)  ## compare it with every control on shapes it has never seen
	@$(call RUN,pipeline.evaluate)

$(OUTPUTS)/%/latest-$(OP): | $(READY)
	@echo "$*: has no complete run on $(OP) in $(OUTPUTS) yet, so it goes first"
	@$(MAKE) $*

compile: | $(READY)  ## fill the compile cache for another machine's collect, no GPU needed
	@$(call RUN,pipeline.compile)

report: | $(READY)  ## an HTML page an operator, and PNGs, from the runs there are (RUN=outputs/<stage>/<time>: from that one)
	@$(call RUN,pipeline.report)$(if $(ONE_RUN), "report.run='$(ONE_RUN)'")

features: | $(READY)  ## print the features of one workload and config
	@$(PY) -m pipeline.features $(ARGS)

import-cache: | $(READY)  ## read a Kernel Tuner or T4 file: FILE=...
	@$(PY) -m pipeline.exchange import file=$(FILE) $(ARGS)

export-cache: | $(READY)  ## write a workload's timings as a Kernel Tuner file: WORKLOAD=... TO=...
	@$(PY) -m pipeline.exchange export workload=$(WORKLOAD) to=$(TO) $(ARGS)

transfer: | $(READY)  ## compare methods on a GPU left out of other tuners' files: CACHES=folder
	@$(call RUN,pipeline.transfer) transfer.folder=$(CACHES)

test: lint  ## lint, then the tests that need no GPU
	@$(PY) -m pytest -n $(JOBS) --dist loadgroup -m "not gpu and not thorough" $(ARGS)

thorough: lint  ## the same with those that take long
	@$(PY) -m pytest -n $(JOBS) --dist loadgroup -m "not gpu" $(ARGS)

lint: | $(READY)  ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m mypy

format: | $(READY)  ## what ruff can repair by itself
	@$(PY) -m ruff check --fix .

clean:  ## remove the environment and the tools' caches; measurements and runs in outputs stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
