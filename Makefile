# Every target sets itself up: on a machine with Python 3.11, make and pip, `make test` and `make reproduce` are enough.
# Set-up is skipped while pyproject.toml and constraints.txt are older than the stamp of the last one.

PYTHON ?= $(shell python3.11 --version >/dev/null 2>&1 && echo python3.11 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= out
# Extra arguments of `gdpa reproduce` and of benchmarks, e.g. make reproduce ARGS="--jobs 4".
ARGS ?=
# Lines and branches that the tests that are not slow must run, in per cent.
COVERAGE ?= 95
# Every module of benchmarks/ that can be run, by the name after "python -m benchmarks.".
BENCHMARKS := $(sort $(subst /,.,$(patsubst benchmarks/%.py,%,$(patsubst %/__main__.py,%.py,$(shell \
	grep -l '^if __name__ == "__main__"' $$(find benchmarks -name '*.py'))))))

# One thread per process: tests and experiments run side by side in processes, and small problems lose by more.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup integrations test test-fast campaigns lint format reproduce race docs check-results lock audit bench faults clean
.DEFAULT_GOAL := help
# Stamps of installed extras stay, also if only a rule for bench-NAME asks for them.
.SECONDARY:

help:
	@echo "make setup         a virtual environment in $(VENV) with everything the tests need"
	@echo "make integrations  add Lightning, Transformers, Accelerate, TRL and TensorBoard, whose examples the tests then run"
	@echo "make test          ruff, mypy, tests and doctests, line and branch coverage of at least $(COVERAGE) %"
	@echo "make test-fast     the tests that take about a minute: no lint, no coverage, none that are slow or start processes"
	@echo "make campaigns     the tests left out of make test: mutants, SciPy's own tests, long fuzzing"
	@echo "make reproduce     run every experiment and write $(OUT)/report.html"
	@echo "make race          run every method on the paper's problems, five seeds, into $(OUT)"
	@echo "make lint          ruff, mypy and import-linter alone"
	@echo "make docs          build the documentation in site/, warnings are errors"
	@echo "make check-results every table of the pages names commit, command and versions, and comes from its records"
	@echo "make bench         print the speed figures quoted in the documentation"
	@echo "make bench-NAME    run one benchmark: $(BENCHMARKS)"
	@echo "make faults        run the fault campaign (an hour or more), fail if a case is not as asked; ARGS=\"--short\" takes minutes"
	@echo "make lock          requirements.lock: every dependency of the tests with its hashes"
	@echo "make audit         look the locked versions up among known vulnerabilities"
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
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs --cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE)
	@echo "== all passed: lint, types, tests, doctests, coverage"

test-fast: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not process and not campaign"

campaigns: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m campaign

lint: $(VENV)/.test
	@echo "== ruff check"
	$(BIN)/ruff check .
	@echo "== ruff format --check"
	$(BIN)/ruff format --check .
	@echo "== mypy --strict"
	$(BIN)/mypy
	@echo "== import-linter"
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce: $(VENV)/.experiments
	$(BIN)/gdpa reproduce all --out $(OUT) $(ARGS)

race: $(VENV)/.experiments
	$(BIN)/gdpa reproduce race --seeds 5 --out $(OUT) $(ARGS)

docs: $(VENV)/.docs
	PYTHONPATH=docs $(BIN)/zensical build --strict --clean
	@echo "== open site/index.html in a browser; it needs no server and no network"

check-results: $(VENV)/.test
	$(BIN)/python -m benchmarks.check_results

bench: $(VENV)/.experiments
	$(BIN)/python benchmarks/step_cost.py

# The peers of a benchmark are in the extra "bench".
bench-%: $(VENV)/.bench
	$(BIN)/python -m benchmarks.$* $(ARGS)

# A repeated command continues: cases that have a record of this commit are not run again.
faults: $(VENV)/.test
	$(BIN)/python -m benchmarks.faults $(ARGS)

lock: $(VENV)/.lock
	$(BIN)/uv pip compile pyproject.toml --extra test -c constraints.txt --universal --python-version 3.11 \
		--generate-hashes --custom-compile-command "make lock" --no-emit-index-url --output-file requirements.lock

audit: $(VENV)/.lock
	.ci/audit $(BIN)/python

clean:
	rm -rf $(VENV) $(OUT) site dist build .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis .coverage .coverage.*
