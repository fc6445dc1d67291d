# `make demo` and `make test` need only Python 3.11+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
SOURCES := $(wildcard src tests benchmarks docs/conf.py)

.PHONY: help demo check test test-long bench bench-peers bench-life-science results docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       fit a private flow on the pinwheel; results in demo/"
	@echo "make test       the whole suite (under 8 minutes on 2 idle cores)"
	@echo "make test-long  the full-size suites"
	@echo "make check      format, lint, types, import contract"
	@echo "make bench      benchmarks; writes benchmarks/results.json"
	@echo "make bench-peers         the clipped gradient against Opacus and jax-privacy"
	@echo "make bench-life-science  the default plan on Life Science; DATA=folder"
	@echo "make results    every table and figure of the paper, into docs/results; DATA=folder"
	@echo "make docs       the documentation site in docs/_build/html"

$(VENV)/run.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("dpflows needs Python 3.11 or newer; set PYTHON=/path/to/python" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing dpflows into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo "installing the development tools into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable '.[check,docs,test]'
	@touch $@

demo: $(VENV)/run.stamp
	@$(BIN)/dpflows demo --output demo --force

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-long: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m long --timeout 3600 --numprocesses 2 --dist worksteal

bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/run.py

# The peers live in an environment of their own: torch is no dependency of dpflows.
$(VENV)-peers/stamp: benchmarks/peers.txt
	@$(PYTHON) -m venv $(VENV)-peers
	@$(VENV)-peers/bin/python -m pip --disable-pip-version-check --quiet --quiet install --requirement benchmarks/peers.txt
	@touch $@

bench-peers: $(VENV)/dev.stamp $(VENV)-peers/stamp
	$(BIN)/python benchmarks/peers.py $(VENV)-peers/bin/python

# DATA is a folder that holds lifesci/lifesci.npz.
bench-life-science: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/life_science.py --data $(DATA)

# DATA is a folder of the real tables; hours on two cores, and a second call goes on.
results: $(VENV)/run.stamp
	$(BIN)/dpflows reproduce all --data $(DATA) --output docs/results

docs: $(VENV)/dev.stamp
	$(BIN)/sphinx-build --fail-on-warning --quiet -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf $(VENV) demo docs/_build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .jax_cache
