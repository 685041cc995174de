# Needs Python 3.11 or later, make and git. Uses uv when it is on PATH. Everything lives in .venv.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.interlock-setup
PYTEST_ARGS ?= -n 2
SEEDS ?= 10000

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast lint format mutants kills sim jail local bench golden docs site clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Create .venv and install Interlock with everything (quick the second time)

run: $(STAMP) ## Set everything up, then show an agent doing a real job
	$(BIN)/interlock demo $(ARGS)

test: lint ## Set everything up, then lint, type-check and test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(STAMP) ## Only the tests, stopping at the first failure
	$(BIN)/python -m pytest -x -q $(PYTEST_ARGS) $(ARGS)

lint: $(STAMP) ## Ruff (rules and format) and the strict type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(STAMP) ## Break each guarantee on purpose; a test must notice every time
	$(BIN)/python scripts/mutants.py $(ARGS)

kills: $(STAMP) ## Kill real agent processes N times; nothing may be lost or done twice
	$(BIN)/python scripts/real_kills.py --kills $(or $(N),500) $(ARGS)

sim: $(STAMP) ## Simulate whole sessions with every fault: make sim SEEDS=100000
	$(BIN)/python -m interlock.testing.sim --seeds $(SEEDS) $(ARGS)

jail: $(STAMP) ## Send N hostile paths through the file tools while links are swapped
	$(BIN)/python scripts/file_jail.py --calls $(or $(N),10000) $(ARGS)

local: $(STAMP) ## Run a small real model on this machine (downloads 127 MB once)
	sh scripts/local.sh $(VENV) .local $(ARGS)

bench: $(STAMP) ## Measure the runtime against a bare loop
	$(BIN)/python bench/run.py $(ARGS)

golden: $(STAMP) ## Write the golden journal of this version anew (refused once it is released)
	$(BIN)/python scripts/golden.py --force $(ARGS)

docs: $(STAMP) ## Draw the phase diagram in docs/architecture.md anew
	$(BIN)/python scripts/phase_diagram.py

site: $(STAMP) ## Build the documentation into site/: strictly, and without network
	$(BIN)/python scripts/build_site.py $(ARGS)

clean: ## Remove .venv and every cache
	rm -rf $(VENV) .local .pytest_cache .ruff_cache .hypothesis dist build site
	find src tests scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml scripts/setup.sh
	sh scripts/setup.sh $(VENV)
	@touch $(STAMP)
