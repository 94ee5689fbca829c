# Every target sets up what it needs in .venv first (PYTHON=... names the interpreter). See `make help`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv/bin
SEED ?= 1
MINUTES ?= 10
# The commit from which `make soak` upgrades: it knows neither TLS nor principals.
UPGRADE_FROM ?= 75859d0
# Processes that run tests. They wait for disks and for each other more than they compute.
WORKERS ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The caller's settings must not put other modules before the installed tree.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP
# Without compiled files every command that a test starts takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo up test check model mutate simulate soak rehearse bench docs format clean

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | while IFS='|' read -r target does; do \
		printf '  make %-8s %s\n' "$$target" "$$does"; done

setup: ## create .venv and install Octavo with its tools
	@scripts/setup_venv.sh

demo: setup ## add to a log, kill its leader and a bookie, check every byte (METADATA=zk: on ZooKeeper; SECURE=1: with TLS and keys)
	@$(VENV)/python scripts/demo.py --metadata "$(METADATA)" $(if $(SECURE),--secure)

up: setup ## run a cluster on this machine, in the foreground
	@$(VENV)/octavo up

test: setup ## run all tests but tests/house, which check runs; each once; a skipped test is a failure
	@$(VENV)/python scripts/zookeeper.py check
	@$(VENV)/python scripts/debian_tools.py fetch
	@OCTAVO_NO_SKIPS=1 $(VENV)/pytest -n $(WORKERS) --no-loadscope-reorder --durations=30 --durations-min=5 \
		--ignore=tests/house

check: setup ## check formatting, lint, types and the rules of tests/house; all run, and any failure fails the target
	@failed=(); \
	echo "== formatting"; $(VENV)/ruff format --check . || failed+=(formatting); \
	echo "== lint"; $(VENV)/ruff check . || failed+=(lint); \
	echo "== types"; $(VENV)/python scripts/check_types.py || failed+=(types); \
	echo "== tidy rules"; OCTAVO_NO_SKIPS=1 $(VENV)/pytest -q -n $(WORKERS) tests/house || failed+=("tidy rules"); \
	if [ $${#failed[@]} -gt 0 ]; then printf 'make check: failed: %s\n' "$${failed[@]}" >&2; exit 1; fi

model: setup ## run the model check: every setting, and every rule broken on purpose
	@$(VENV)/python scripts/check_model.py $(MODEL_OPTIONS)

mutate: setup ## put known defects into the source, one at a time, and see that tests notice each
	@$(VENV)/python scripts/mutate.py $(MUTATE_OPTIONS)

simulate: setup ## run one simulated universe: make simulate SEED=n [OPTIONS="--trace"]
	@$(VENV)/python scripts/simulate.py $(SEED) $(OPTIONS)

soak: setup ## run what `make test` leaves out, crash, kill, recovery and damage tests in their long form, then simulate for MINUTES=n
	@OCTAVO_NO_SKIPS=1 $(VENV)/pytest -n $(WORKERS) -m soak
	@OCTAVO_NO_SKIPS=1 OCTAVO_CRASH_SAMPLES=40 OCTAVO_CRASH_EVERY=1 OCTAVO_CRASH_SEEDS=20 OCTAVO_KILL_CYCLES=200 \
		OCTAVO_RECOVERIES=50 OCTAVO_SILENT_SOCKETS=10000 OCTAVO_INVENTED_IDS=1000000 OCTAVO_TAKEOVERS=200 OCTAVO_BOTH_DRIVERS=1 \
		OCTAVO_STREAM_TAKEOVERS=200 OCTAVO_FAULT_SEEDS=4 OCTAVO_LARGE_REFERENCE=1 \
		OCTAVO_MORE_EVENTS=1 OCTAVO_RACK_BOOKIES=4 OCTAVO_PROCEDURES=1 OCTAVO_SPARK_CLUSTER=1 OCTAVO_REPLAY_BYTES=2000000000 OCTAVO_UPGRADE_ROUNDS=2 \
		OCTAVO_UPGRADE_FROM=$(UPGRADE_FROM) \
		$(VENV)/pytest -o faulthandler_timeout=1800 tests/crash tests/bookie/storage/test_storage_crash.py tests/bookie/storage/test_fence_model.py \
		tests/bookie/storage/test_term_model.py tests/bookie/storage/test_trim_model.py tests/bookie/storage/test_doubt_model.py \
		tests/processes/bookies/test_kills.py \
		tests/processes/logs/test_recovery_processes.py tests/processes/logs/test_log_takeovers.py tests/processes/logs/test_stream_takeovers.py \
		tests/processes/commands/test_repair.py tests/processes/commands/test_procedures.py \
		tests/processes/commands/test_systemd_units.py tests/processes/bookies/test_upgrade.py tests/processes/bookies/test_older_bookies.py \
		tests/security/test_tls_bookies.py tests/security/test_new_ledgers.py tests/pipeline/test_standalone.py tests/pipeline/test_log_sink_kills.py \
		tests/simulation/faults/test_fault_names.py tests/model/ledgers/test_reference.py \
		tests/client/choose/test_placement.py
	@OCTAVO_NO_SKIPS=1 OCTAVO_GATEWAY_KILLS=100 $(VENV)/pytest -o faulthandler_timeout=7200 tests/processes/gateways/test_gateway_faults.py
	@$(VENV)/python scripts/simulate.py --minutes $(MINUTES) $(OPTIONS)
	@$(VENV)/python scripts/simulate.py --minutes $$(($(MINUTES) / 5 + 1)) --set guarded=1
	@$(VENV)/python scripts/simulate.py --minutes $$(($(MINUTES) / 5 + 1)) --set packs=1
	@$(VENV)/python scripts/simulate.py --minutes $$(($(MINUTES) / 5 + 1)) --set followers=1
	@$(VENV)/python scripts/simulate.py --minutes $$(($(MINUTES) / 5 + 1)) --set gateways=1
	@$(VENV)/python scripts/simulate.py --minutes $$(($(MINUTES) / 5 + 1)) --set deferred=1
	@$(VENV)/python scripts/simulate.py --minutes $$(($(MINUTES) / 5 + 1)) --set logs=1 --set keyed=1

rehearse: setup ## install, watch, break and upgrade a cluster on three hosts of namespaces, as an operator does (as root)
	@$(VENV)/python scripts/rehearsal.py

docs: setup ## build the documentation site, strictly, into .check/docs/site
	@$(VENV)/python scripts/artifacts/build_docs.py

bench: setup ## run the benchmark suite
	@$(VENV)/python scripts/bench.py

format: setup ## format the code and apply what lint can fix
	@$(VENV)/ruff check --fix --quiet . || true
	@$(VENV)/ruff format .

clean: ## remove everything that the other targets created, including .venv
	@rm -rf .venv .check build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
