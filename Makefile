# Each target makes its own .venv on first use; afterwards it is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := $(VENV)/.bench
# What is not given on the command line comes from the machine; the tests want two workers at most.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-all bench docs lint
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## five organisations teach each other on two CPU cores, in about three minutes
	$(BIN)/fedstill demo

test: lint ## the linters and the tests, without those that take minutes each
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow"

test-all: lint ## all tests, and runs of six methods that are killed thirty times and must end with the same bytes
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup
	$(BIN)/python scripts/kill_and_resume.py --kills 30

bench: $(BENCH) ## speed and memory against plain loops (benchmarks/README.md)
	$(BIN)/python benchmarks/run.py

docs: $(READY) ## the guide as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(READY) ## format, lint and types, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy examples

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedstill needs Python 3.11 or newer; try make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[llm,datasets,figures,privacy,lora,report,tensorboard,federation,docs,dev]"
	touch $@

# transformers' Trainer, which only the benchmarks need, wants accelerate.
$(BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	touch $@
