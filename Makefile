# Each target makes .venv if it is missing and installs the exact pins of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test real check organism docs clean

demo: $(READY) real
	$(BIN)/tracelm demo

test: $(READY) real
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile

# The real model, 93 MB once; what cannot be fetched is told in a line, and done without.
real: $(READY)
	@$(BIN)/tracelm get smollm2-135m > /dev/null || true

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet

organism: $(READY)
	$(BIN)/python -m tracelm.demo.train

docs: $(READY)
	$(BIN)/mkdocs serve

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache

# torch first and alone: its pin decides which build is taken before another package asks for one.
$(READY): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable ".[dev]"
	touch $(READY)
