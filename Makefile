# Every target sets itself up: on a machine with Python 3.11, make and pip, `make test` and `make reproduce` are enough.
# Set-up is skipped while pyproject.toml and constraints.txt are older than the stamp of the last one.

PYTHON ?= $(shell python3.11 --version >/dev/null 2>&1 && echo python3.11 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
# Extra arguments of `gdpa reproduce`, e.g. make reproduce ARGS="--jobs 4".
ARGS ?=

# One thread per process: tests and experiments run side by side in processes, and small problems lose by more.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup integrations test lint format reproduce docs bench clean
.DEFAULT_GOAL := help

help:
	@echo "make setup         a virtual environment in $(VENV) with everything the tests need"
	@echo "make integrations  add Lightning, Transformers, Accelerate, TRL and TensorBoard, whose examples the tests then run"
	@echo "make test          ruff, mypy, tests and doctests, line coverage of at least 95 %"
	@echo "make reproduce     run every experiment and write $(OUT)/report.html"
	@echo "make lint          ruff and mypy alone"
	@echo "make docs          build the documentation in site/, warnings are errors"
	@echo "make bench         print the speed figures quoted in the documentation"
	@echo "make clean         remove what these targets made"

setup: $(VENV)/.test

integrations: $(VENV)/.test $(VENV)/.integrations

# $(VENV)/.NAME is the stamp of "the extra NAME is installed under constraints.txt".
$(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing gdpa[$*] into $(VENV), a minute or two the first time"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@ $(if $(filter test,$*),$(VENV)/.experiments)

$(BIN)/python:
	@echo "== making $(VENV) with $(PYTHON)"
	$(PYTHON) -m venv $(VENV)

test: $(VENV)/.test lint
	@echo "== tests and doctests"
	$(BIN)/python -m pytest -n 2 -rs --cov --cov-report=term:skip-covered --cov-fail-under=95
	@echo "== all passed: lint, types, tests, doctests, coverage"

lint: $(VENV)/.test
	@echo "== ruff check"
	$(BIN)/ruff check .
	@echo "== ruff format --check"
	$(BIN)/ruff format --check .
	@echo "== mypy --strict"
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce: $(VENV)/.experiments
	$(BIN)/gdpa reproduce all --out $(OUT) $(ARGS)

docs: $(VENV)/.docs
	PYTHONPATH=docs $(BIN)/zensical build --strict --clean
	@echo "== open site/index.html in a browser; it needs no server and no network"

bench: $(VENV)/.experiments
	$(BIN)/python benchmarks/step_cost.py

clean:
	rm -rf $(VENV) $(OUT) site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
