# The commands of accel_rl. Each makes .venv when it is missing and installs nothing when called again.
#   make train            trains on an Atari game for a few minutes, and films a game (ARGS="..." for another run)
#   make test             runs the quick tests, in about three minutes
#   make test-all         runs the slow ones, too
#   make nightly          all games, all damages, the documents' programs, learning on three seeds (PART=3/7 for a part)
#   make test-processors  the tests that compare computed numbers, as other processors would compute them
#   make test-gpu         the tests that need a GPU; on an emulated one where torch has no CUDA (needs g++);
#                         GPU_PYTHON=python3 runs them by that Python and installs nothing
#   make test-soak        whole runs hit at random moments for 45 minutes, and 90 minutes of watching memory and speed
#   make check            format, lint, types and make test
#   make docs             builds the documentation in build/docs
#   make pins             renews constraints.txt, the versions of all packages that are installed
#   make format           formats and mends what can be mended
#   make clean            removes .venv, caches and build outputs (runs/ stays)

PYTHON ?= python3
GPU_PYTHON ?=
# A learner on each core is fastest on two; with more cores, workers are.
ARGS ?= algo=ppo env=breakout total_steps=400000 max_minutes=5 $(if $(filter 2,$(shell nproc 2>&1)),learners=2 num_workers=0)
RUN := $(or $(RUN),runs/first-$(shell date +%Y%m%d-%H%M%S))

BIN := .venv/bin
# $(call tests,MARKERS,OPTIONS): tests that start no process, two at a time, and then those that do, each alone.
# Each of the two begins with one half, so that it alone makes the fixtures of a module, and helps the other at the end.
# What failed is run once more: build/flaky.txt names what passed then.
PYTEST := $(BIN)/python -m pytest
TWO := --numprocesses 2 --dist worksteal
define tests
	$(PYTEST) $(TWO) -m "($(1)) and not processes and not gpu" $(2) || $(BIN)/python tests/again.py $(2)
	$(PYTEST) -m "($(1)) and processes and not gpu" $(2) || $(BIN)/python tests/again.py $(2)
endef
EMULATED_GPU := build/emulated_gpu/device.so
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PIP_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60

# pip gives up on a download that breaks off in its middle; what came whole is in its cache next time.
define install
	for try in 1 2 3; do \
	    $(BIN)/python -m pip install --constraint constraints.txt $(1) && exit 0; \
	    echo "pip install failed (try $$try of 3)" >&2; sleep $$((5 * try)); \
	done; exit 1
endef

help:
	@sed -n 's/^#   //p' Makefile

.PHONY: help train test test-all slow nightly test-processors test-gpu test-soak check lint docs pins format clean

train: .venv/.ready-to-run
	$(BIN)/python launch/train.py $(ARGS) run_dir=$(RUN)
	$(BIN)/python launch/play.py $(RUN) max_steps=3000

test: .venv/.ready-to-test
	$(call tests,not slow and not nightly,$(COSTS))

test-all: test slow

slow: .venv/.ready-to-test
	$(call tests,slow and not nightly)

nightly: .venv/.ready-to-test
	$(call tests,nightly,$(PART:%=--part=%))

# Vector instructions and threads (one, unless said otherwise) decide how products and sums are rounded: all tests with
# the instructions that differ most, and one case of each with others.
test-processors: NUMERIC = $(PYTEST) $(TWO) -m "numeric and not nightly" $$(grep -lr mark.numeric tests --include="test_*.py")
test-processors: .venv/.ready-to-test
	ONEDNN_MAX_CPU_ISA=SSE41 $(NUMERIC)
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE $(NUMERIC) --first-numeric
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 $(NUMERIC) --first-numeric

# A Python that was installed by others may have newer packages, whose warnings are no errors.
test-gpu: GPU_PYTEST = $(if $(GPU_PYTHON),$(GPU_PYTHON) -m pytest -W default tests/gpu,$(PYTEST) $(TWO)) -m gpu
test-gpu: THE_PYTHON = $(or $(GPU_PYTHON),$(BIN)/python)
test-gpu: $(if $(GPU_PYTHON),,.venv/.ready-to-test)
	@if $(THE_PYTHON) -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; then \
	    $(THE_PYTHON) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "torch finds no GPU here; to emulate one, install a torch without CUDA")' && \
	    $(GPU_PYTEST); \
	else \
	    $(THE_PYTHON) tests/emulated_gpu/build.py $(EMULATED_GPU) && \
	    EMULATED_GPU=$(CURDIR)/$(EMULATED_GPU) EMULATED_GPUS=2 PYTHONPATH=$(CURDIR)/tests/emulated_gpu$${PYTHONPATH:+:$$PYTHONPATH} \
	        $(GPU_PYTEST); \
	fi

# CHAOS=minutes=5, SOAK=minutes=5 and so on change how long, and everything else.
test-soak: .venv/.ready-to-test
	$(BIN)/python tests/stress/chaos.py minutes=45 out=build/chaos $(CHAOS)
	$(BIN)/python tests/stress/soak.py env=catch minutes=60 out=build/soak_catch $(SOAK)
	$(BIN)/python tests/stress/soak.py env=breakout minutes=30 out=build/soak_breakout $(SOAK)

check: COSTS = --check-costs
check: lint test

lint: .venv/.ready-to-test
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

docs: .venv/.ready-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# uv finds the versions for several versions of Python at once; pip finds them for its own Python alone.
pins:
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install --quiet uv==0.13.9
	build/pins/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-header --no-annotate \
	    --output-file build/pins/resolved.txt requirements-dev.txt requirements-docs.txt
	{ grep '^#' constraints.txt; grep --invert-match '^nvidia-\|^cuda-' build/pins/resolved.txt; } > build/pins/constraints.txt
	mv build/pins/constraints.txt constraints.txt

format: .venv/.ready-to-test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find accel_rl launch benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 15) else "accel_rl needs Python 3.11 to 3.14 and $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	@touch $@

# The markers are touched last, so that an installation that broke off is taken up again.
.venv/.ready-to-run: .venv/.made requirements.txt constraints.txt pyproject.toml
	$(call install,-r requirements.txt)
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.ready-to-test: .venv/.ready-to-run requirements-dev.txt
	$(call install,-r requirements-dev.txt)
	@touch $@

.venv/.ready-for-docs: .venv/.ready-to-test requirements-docs.txt
	$(call install,-r requirements-docs.txt)
	@touch $@
