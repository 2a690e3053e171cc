# `make` alone shows what there is. Every target first builds .venv if it is missing or older than what it is built from,
# from nothing but a Python >= 3.11: `make setup PYTHON=/path/to/python3.12` chooses one. ARGS are passed on:
# `make test ARGS="-n0 -k outbox"`, `make demo ARGS="--seed 7"`.

SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?=
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.ready
UV := $(BIN)/uv --quiet --no-progress
export UV_COMPILE_BYTECODE := 1
COMPILE := $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url

# Nothing of the caller's own Python set-up may leak into ours.
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE
unexport UV_PYTHON UV_SYSTEM_PYTHON UV_PROJECT_ENVIRONMENT

# uv does not read pip's settings: a mirror or a certificate that pip was told about holds for both.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

.PHONY: help setup demo test check fix chaos bench proof services services-stop docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## build .venv with the pinned tools and this package
	@:

demo: $(STAMP) ## a small shop, an outage and a kill -9, then the ledger
	@$(BIN)/postroom demo $(ARGS)

test: $(STAMP) ## run the tests on all cores
	@$(BIN)/python -m tests.services install
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

check: $(STAMP) ## formatting, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

fix: $(STAMP) ## format, and repair what ruff can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

chaos: $(STAMP) ## five minutes of faults for each store: make chaos ARGS="--seed 7"
	@failed=0; for run in "sqlite --to file" "postgresql --to kafka" "mysql --to amqp"; do \
		$(BIN)/python -m chaos --store $$run --minutes 5 $(ARGS) || { status=$$?; [ $$status -lt 128 ] || exit $$status; failed=1; }; \
	done; exit $$failed

bench: $(STAMP) ## make all benches and one table, in hours; or one: make bench ARGS="drain --store sqlite"
	@$(BIN)/python -m bench $(ARGS)

proof: $(STAMP) ## make all runs of docs/explanation/proof.md, and the page: make proof ARGS=--help
	@$(BIN)/python -m bench.proof $(ARGS)

services: $(STAMP) ## start the servers that the tests use
	@$(BIN)/python -m tests.services start

services-stop: $(STAMP) ## stop them
	@$(BIN)/python -m tests.services stop

docs: $(STAMP) ## run every example of the documentation
	@$(BIN)/python -m pytest tests/docs $(ARGS)

lock: $(STAMP) ## pin again what pyproject.toml asks for: make lock ARGS=--upgrade
	@echo uv | $(COMPILE) - --output-file requirements/uv.txt $(ARGS) >/dev/null
	@$(COMPILE) pyproject.toml --group dev --output-file requirements/dev.txt $(ARGS) >/dev/null
	@! grep -n '://' requirements/*.txt || { echo "The lock files must not contain addresses." >&2; exit 1; }

clean: ## remove .venv, caches and build products
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench chaos examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# `sync` also removes what the lock file does not name; this package is then installed on top, built by the pinned backend.
$(STAMP): pyproject.toml requirements/uv.txt requirements/dev.txt | $(BIN)/python
	@echo "Installing the pinned packages into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
	@$(UV) pip sync --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# A name on the PATH may be a shim that refuses to start, so each candidate is asked for its version.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Building .venv with $$($$python --version)"; \
	        exec $$python -m venv --clear .venv; \
	    fi; \
	done; \
	echo "No Python >= 3.11 found$(if $(PYTHON), at $(PYTHON)). Install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1
