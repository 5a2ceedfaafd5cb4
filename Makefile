# Everything a developer types. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help setup demo test check format vm-test bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1mmake %-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Build .venv with the locked packages and this checkout, editable

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fabric-sentinel needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked packages into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: setup ## Run the whole line on this machine: a culprit is named within three minutes
	@$(BIN)/fabric-sentinel demo $(ARGS)

test: setup ## Run every test that this machine can run (what cannot run says why)
	@$(BIN)/python -m pytest $(ARGS)

check: setup ## Format, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: setup ## Rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

vm-test: setup ## Real kernel, real RDMA, whole line, in a QEMU guest (root; about ten minutes)
	@FABRIC_VM=1 $(BIN)/python -m pytest -m vm $(ARGS)

bench: setup ## Run the benchmarks (figures go to the terminal)
	@for f in bench/[a-z]*.py; do echo "== $$f"; $(BIN)/python $$f || exit 1; done

lock: ## Resolve requirements.lock again
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-emit-index-url --quiet -o requirements.lock

clean: ## Remove what the targets above made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
