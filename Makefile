# Each target makes .venv if it is missing and installs the exact pins of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
TESTS := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile
# What `make quick` runs: the rooms that need no whole model, one walk over the road, the command.
QUICK := rule text view weights files trust test_imports.py test_theta.py test_stream.py cli/test_cli.py

# Without bytecode on disk every run compiles the package and the tests once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test real coverage check organism docs clean

demo: $(READY) real
	$(BIN)/tracelm demo

quick: $(READY)
	$(TESTS) -p no:schemathesis -m "not slow" $(addprefix tests/,$(QUICK))

test: $(READY) real
	$(TESTS)

coverage: $(READY) real
	$(TESTS) --cov --cov-report=term --cov-report=html

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
	rm -rf build dist site htmlcov .coverage* .pytest_cache .mypy_cache .ruff_cache

# torch first and alone: its pin decides which build is taken before another package asks for one.
$(READY): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable ".[dev]"
	touch $(READY)
