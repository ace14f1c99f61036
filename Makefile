# Two commands: `make demo` and `make test`. Each sets up everything it needs first, in .venv,
# and skips the set-up when it is done. Extra arguments for pip go in PIP_ARGS.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP_ARGS ?=
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check bench clean

help:
	@echo "make demo   set up, run the main job on the embedded demo data, say what to look at"
	@echo "make test   set up, run all tests"
	@echo "make check  format, lint, types, fast tests"
	@echo "make bench  the benchmarks (on an otherwise idle machine)"
	@echo "make clean  remove the virtual environment and everything generated"

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "robustcf needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python scripts/demo.py --out demo-output

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow and not realdata" -q $(PYTEST_ARGS)

$(VENV)/.ready-bench: $(READY)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[bench]'
	@touch $@

bench: $(VENV)/.ready-bench
	@for script in scripts/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) demo-output build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find robustcf tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
