# Every target sets up what it needs in .venv first (PYTHON=... names the interpreter). See `make help`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv/bin
SEED ?= 1
MINUTES ?= 10
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Nothing of the caller's may stand before the installed tree.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP

.PHONY: help setup demo up test check model simulate soak bench format clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | while IFS='|' read -r target does; do \
		printf '  make %-8s %s\n' "$$target" "$$does"; done

setup: ## make .venv and install Octavo with its tools
	@scripts/setup_venv.sh

demo: setup ## a three-bookie cluster, a real log, a killed bookie, every byte read back (METADATA=zk: on ZooKeeper)
	@$(VENV)/python scripts/demo.py --metadata "$(METADATA)"

up: setup ## a cluster on this machine, in the foreground
	@$(VENV)/octavo up

test: setup ## all tests; a skipped test is a failure
	@$(VENV)/python scripts/zookeeper.py check
	@OCTAVO_NO_SKIPS=1 $(VENV)/pytest

check: setup ## formatting, lint, types, tidy rules: every one runs, and any that fails is the result
	@failed=(); \
	echo "== formatting"; $(VENV)/ruff format --check . || failed+=(formatting); \
	echo "== lint"; $(VENV)/ruff check . || failed+=(lint); \
	echo "== types"; $(VENV)/python scripts/check_types.py || failed+=(types); \
	echo "== tidy rules"; OCTAVO_NO_SKIPS=1 $(VENV)/pytest -q tests/house || failed+=("tidy rules"); \
	if [ $${#failed[@]} -gt 0 ]; then printf 'make check: failed: %s\n' "$${failed[@]}" >&2; exit 1; fi

model: setup ## the protocol, state by state: every setting, and every rule broken on purpose
	@$(VENV)/python scripts/check_model.py $(MODEL_OPTIONS)

simulate: setup ## one simulated universe: make simulate SEED=n [OPTIONS="--trace"]
	@$(VENV)/python scripts/simulate.py $(SEED) $(OPTIONS)

soak: setup ## the long form: crash, kill, recovery and damage tests, then simulated universes for MINUTES=n
	@OCTAVO_NO_SKIPS=1 OCTAVO_CRASH_SAMPLES=40 OCTAVO_CRASH_SEEDS=20 OCTAVO_KILL_CYCLES=200 OCTAVO_RECOVERIES=50 \
		$(VENV)/pytest tests/crash tests/bookie/test_storage_crash.py tests/processes/test_kills.py \
		tests/processes/test_recovery_processes.py
	@$(VENV)/python scripts/simulate.py --minutes $(MINUTES) $(OPTIONS)

bench: setup ## the benchmark suite
	@$(VENV)/python scripts/bench.py

format: setup ## format the code and mend what lint can mend
	@$(VENV)/ruff check --fix --quiet . || true
	@$(VENV)/ruff format .

clean: ## remove what the other targets made, .venv included
	@rm -rf .venv .check build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
