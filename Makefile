# make demo | test | check | fix | bench | test-server | test-lite3 | clean
#
# Every target makes the environment that it needs. PYTHON is the Python (3.10 or later) that it is made
# with, VENV where it stands: `make test PYTHON=python3.12 VENV=.venv-312`.

PYTHON ?= python3
VENV ?= .venv
LITE3 := 3.2.2
LITE3_VENV := .venv-lite3

BIN := $(VENV)/bin
SOURCES := graphrag_milvus tests scripts

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what is imported; to compile every file beforehand doubles the time of the installation.
INSTALL := -m pip install --quiet --no-compile

.DELETE_ON_ERROR:
.PHONY: demo test check fix bench test-server test-lite3 clean

# What the demo shows needs the library and the extra `local`; what the developers use comes on top.
demo: $(VENV)/.demo
	$(BIN)/graphrag-milvus demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python scripts/benchmark.py $(ARGS)

# A real Milvus server, in an environment of its own; Linux x86-64.
test-server: $(VENV)/.dev
	$(BIN)/python scripts/test_server.py $(ARGS)

# The store's contract suite on the other line of the embedded engine.
test-lite3: $(LITE3_VENV)/.installed
	$(LITE3_VENV)/bin/python -m pytest tests/contracts $(ARGS)

clean:
	rm -rf .venv .venv-server .venv-lite3 .venv-peer .cache build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The stamps: an environment is filled again when pyproject.toml has changed since.

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) -e ".[local]"
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) -e ".[local,readers,evaluation,dev]"
	touch $@ $(VENV)/.demo

# pip would say that another version was asked for: it was, and that is the point.
$(LITE3_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(LITE3_VENV)
	$(LITE3_VENV)/bin/python $(INSTALL) -e ".[dev]"
	$(LITE3_VENV)/bin/python $(INSTALL) --no-warn-conflicts "milvus-lite==$(LITE3)"
	touch $@
