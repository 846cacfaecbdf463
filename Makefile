# Two commands: `make demo` shows what the package does, `make test` checks it. Each sets up what it needs first.

PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all lint clean

demo: .venv/installed
	$(BIN)/sntg demo

test: lint
	$(BIN)/pytest --quiet --numprocesses 2 --cov --cov-report=term

test-all: test
	$(BIN)/pytest --quiet -m slow
	$(BIN)/python tests/mutants.py

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The stamps are newer than what they were installed from, so a second run starts at once.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'sntg needs Python 3.11 or later: make PYTHON=/path/to/python3'; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(PIP_INSTALL) --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(PIP_INSTALL) --editable .[dev]
	touch $@

clean:
	rm -rf .venv .test-data sntg-demo dist
