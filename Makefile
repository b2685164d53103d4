# Two commands do everything on a fresh machine that has python3 (3.11 or newer) and make:
#   make search   set up, search the shipped Kimi-K3 space, write results.db and deploy.env
#   make test     set up and run the tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: search test check docs bench clean
search: $(VENV)/.installed
	$(BIN)/partitune search kimi-k3-pp8-tp2
	$(BIN)/partitune export kimi-k3-pp8-tp2 -o deploy.env

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/python -m tests.readme

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/simulator.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# The environment is made anew when the project's requirements change.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "partitune needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 search")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.installed
