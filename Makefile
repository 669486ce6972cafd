# Two commands for users: `make demo` and `make test`. They set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast check format columns catalogue docs bench bench-peers bench-before torture mutants clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# The environment is rebuilt when the dependencies change.
$(VENV)/.ready: pyproject.toml requirements/locked.txt scripts/setup
	PYTHON=$(PYTHON) ./scripts/setup $(VENV)
	@touch $@

demo: $(VENV)/.ready ## run Duly with its dashboard and a few sample jobs
	@$(BIN)/duly up --demo

test: check ## check everything and run all tests (under 20 minutes on two cores)
	@./scripts/test-services
	@$(BIN)/python tests/steady.py $(ARGS)

test-fast: $(VENV)/.ready ## run the tests without real processes, waits and searches (3 minutes on two cores)
	@$(BIN)/python tests/steady.py --fast $(ARGS)

check: $(VENV)/.ready ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.ready ## format the code, and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready ## write docs/settings.md from the code
	$(BIN)/python scripts/settings_table.py > docs/settings.md

columns: $(VENV)/.ready ## write the lists of a job's columns into the SQL statements
	@$(BIN)/python scripts/columns

catalogue: $(VENV)/.ready ## write what the steps of the store make into src/duly/store/catalogue.json
	@PYTHONPATH=tests $(BIN)/python scripts/catalogue

bench: $(VENV)/.ready ## measure, beside a raw-SQL loop of the same statements
	$(BIN)/duly bench

bench-peers: $(VENV)/.ready ## measure beside peers, which it installs (40 minutes; options: ARGS=--help)
	@PYTHONPATH=bench $(BIN)/python -m peers $(ARGS)

bench-before: $(VENV)/.ready ## measure beside an earlier commit, in turns: ARGS="1e0d431 drain lag" (options: ARGS=--help)
	@PYTHONPATH=bench $(BIN)/python -m before $(ARGS)

torture: $(VENV)/.ready ## try to make a cluster lose or double a run, for MINUTES=10 with SEED=7
	PYTHONPATH=tests $(BIN)/python -m torture.run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

mutants: $(VENV)/.ready ## break the code in hundreds of ways, and check that a test notices each (options: ARGS=--help)
	@PYTHONPATH=tests $(BIN)/python -m mutants.run $(ARGS)

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) .venv-peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis unsteady.txt
