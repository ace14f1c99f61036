# Two commands: `make demo` and `make test`. Each sets up everything it needs first, in .venv,
# and skips the set-up when it is done. Extra arguments for pip go in PIP_ARGS, for pytest in
# PYTEST_ARGS; JOBS is the number of test processes.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP_ARGS ?=
PYTEST_ARGS ?=
JOBS ?= 2

# Each process starts with tests that stand together, so what a module prepares is prepared once;
# a process that is done early takes over from the others.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
SPHINX = $(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check fuzz docs build bench clean

help:
	@echo "make demo      set up, run the main job on the embedded demo data, say what to look at"
	@echo "make test      set up, run all tests but those that take minutes"
	@echo "make test-all  all tests"
	@echo "make check     format, lint, words, types, documentation, fast tests"
	@echo "make fuzz      spoilt files by the 100,000 (CASES=..., SEED=...; CASE=... for one alone)"
	@echo "make docs      the documentation, in docs/_build/html"
	@echo "make build     wheel and source archive, in dist"
	@echo "make bench     the benchmarks (on an otherwise idle machine)"
	@echo "make clean     remove the virtual environment and everything generated"

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "robustcf needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python scripts/demo.py --out demo-output

# Processes side by side, and what they start, take one thread each.
test test-all check fuzz: export OMP_NUM_THREADS = 1

test: $(READY)
	$(PYTEST) -m "not long" $(PYTEST_ARGS)

test-all: $(READY)
	$(PYTEST) --timeout 1800 $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/check_words.py
	$(BIN)/mypy
	$(SPHINX) -q
	$(PYTEST) -q -m "not slow and not realdata and not long" $(PYTEST_ARGS)

CASES ?= 100000
SEED ?= 0
CASE ?=

fuzz: $(READY)
	$(BIN)/python -m tests.hostile.fuzz --seed $(SEED) --jobs $(JOBS) $(if $(CASE),--case $(CASE),--cases $(CASES))

docs: $(READY)
	$(SPHINX)

build: $(READY)
	$(BIN)/python -m build

$(VENV)/.ready-bench: $(READY)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[bench]'
	@touch $@

bench: $(VENV)/.ready-bench
	@for script in scripts/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) demo-output docs/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find robustcf tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
