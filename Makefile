# Each target makes .venv if it is missing and installs the exact pins of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
TESTS := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
# What `make quick` runs: the rooms that need no whole model, one walk over the road, the command.
QUICK := rule text records files trust test_imports.py test_stream.py cli/test_cli.py

# Without bytecode on disk every run compiles the package and the tests once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test nightly fresh real coverage clients inspect check organism docs locked lock audit release clean

# The main job: labelled tickets to a verdict, a page, and a folder that `lastword serve` takes.
demo: $(READY) real
	@$(BIN)/lastword get minilm > /dev/null || true
	@if $(BIN)/lastword get smollm2-135m > /dev/null; then \
		$(BIN)/lastword try examples/tickets.csv --instructions "Which team?" \
			--model lastword/smollm2-135m --out build/tickets --budget 0; \
	else $(BIN)/lastword demo; fi

quick: $(READY)
	$(TESTS) -p no:schemathesis -m "not slow" $(addprefix tests/,$(QUICK))

test: $(READY) real
	$(TESTS)

# Every row of the matrices that repeat one road, too (tests/tiers.py).
nightly: $(READY) real
	$(TESTS) --nightly

# What a stranger has: the newest packages and what git knows, in build/; README's first install and
# its demo, then every command of README and the quick tests.
FRESH := PATH="$(CURDIR)/build/fresh/bin:$$PATH" XDG_CACHE_HOME="$(CURDIR)/build/fresh/cache"
fresh:
	rm -rf build/fresh && mkdir -p build/fresh
	git checkout-index --all --prefix=build/fresh/checkout/
	$(PYTHON) -m venv build/fresh
	cd build/fresh/checkout && $(FRESH) sh -exc "$$(grep -m 1 '^pip install' README.md | cut -d '#' -f 1); lastword demo"
	cd build/fresh/checkout && $(FRESH) sh -exc "pip install '.[dev]'; \
		python -m pytest -p no:schemathesis -n 2 --dist loadfile -m 'not slow' $(addprefix tests/,$(QUICK)); \
		python -m pytest tests/test_pages.py -k README"

coverage: $(READY) real
	$(TESTS) --nightly --cov --cov-report=term --cov-report=html

# The real model, 93 MB once; what cannot be fetched is told in a line, and done without.
real: $(READY)
	@$(BIN)/lastword get smollm2-135m > /dev/null || true

# Clients of others in an environment apart from ours: the tests that they run against the service run where it is.
clients:
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --no-deps --requirement constraints.clients.txt

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The example for Inspect in an environment of its own, since it takes an fsspec before that of the pins, and its test.
inspect:
	test -x .venv-inspect/bin/python || $(PYTHON) -m venv .venv-inspect
	mkdir -p build && grep -v '^fsspec==' constraints.txt > build/inspect.txt
	.venv-inspect/bin/python -m pip install --quiet --constraint build/inspect.txt torch hatchling editables
	.venv-inspect/bin/python -m pip install --quiet --constraint build/inspect.txt --no-build-isolation \
		--editable ".[dev]" --editable examples/inspect
	.venv-inspect/bin/python -m pytest tests/integrations/test_inspect.py

organism: $(READY)
	$(BIN)/python experiments/organism.py

docs: $(READY)
	$(BIN)/mkdocs serve

# .venv from files whose SHA-256 is known; torch alone by its pin, since each index has its own build of it.
locked:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement constraints.hashes.txt
	$(PIP) torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

# constraints.hashes.txt anew, after a pin has changed; both tools stand apart from the pins.
lock: build/tools
	head -5 constraints.hashes.txt > build/head.txt
	grep -v ^torch== constraints.txt | build/tools/bin/uv pip compile --quiet --no-deps --no-annotate --no-header \
		--generate-hashes --python-version 3.11 --output-file build/hashes.txt -
	cat build/head.txt build/hashes.txt > constraints.hashes.txt

# What goes to the package index, in dist/, and the tag; .github/workflows/release.yml publishes a tag.
release: check build/tools
	test -z "$$(git status --porcelain)"  # a release is made of what is committed
	rm -rf dist
	$(BIN)/python -m hatchling build -t sdist -t wheel -d dist
	build/tools/bin/twine check --strict dist/*
	build/tools/bin/check-wheel-contents dist/*.whl
	git tag -a v$$($(BIN)/python -m hatchling version) -m "lastword $$($(BIN)/python -m hatchling version)"
	@echo "'git push origin v$$($(BIN)/python -m hatchling version)' publishes it"

# Known vulnerabilities of the pins, by the index's own list of them; a pin that it does not list fails.
audit: build/tools
	build/tools/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

build/tools:
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet uv check-wheel-contents pip-audit twine

clean:
	rm -rf build dist site htmlcov .coverage* .pytest_cache .mypy_cache .ruff_cache

# torch first and alone: its pin decides which build is taken before another package asks for one.
$(READY): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable ".[dev]"
	touch $(READY)
