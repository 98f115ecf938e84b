# A fresh clone needs nothing but this file, make and Python: each target sets itself up first.

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/census-income
BENCH ?= runs/bench
# One more than two cores: a worker waits now and then, for a process of its own or for a disk.
WORKERS ?= 3

BIN := $(VENV)/bin
# Younger than pyproject.toml once everything it asks for is installed, so that a second `make` installs nothing.
STAMP := $(VENV)/.installed

# GradAlign runs on TensorFlow, whatever this machine's own Keras settings say.
export KERAS_BACKEND := tensorflow
export TF_USE_LEGACY_KERAS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The oldest versions that pyproject.toml admits, on a Python that they run on.
LOWEST_VENV ?= .venv-lowest
LOWEST_PYTHON ?= python3.10 python3.11 python3.12
LOWEST_STAMP := $(LOWEST_VENV)/.installed

.PHONY: help install train bench test test-lowest lint

help:
	@echo 'make install       create $(VENV) and install GradAlign with all extras'
	@echo 'make train         train on Census-Income and write $(RUN), replacing the run there; RUN=... for another folder'
	@echo 'make bench         measure training steps beside plain ones and PyTorch, and write the table to $(BENCH)'
	@echo 'make test          run the tests, WORKERS=$(WORKERS) at a time'
	@echo 'make test-lowest   run them on the oldest versions of everything that pyproject.toml admits'
	@echo 'make lint          check style, format and types'

install: $(STAMP)

train: $(STAMP)
	"$(BIN)/gradalign" train census-income --out "$(RUN)" --overwrite

bench: $(STAMP)
	"$(BIN)/gradalign" bench --out "$(BENCH)"

test: $(STAMP)
	"$(BIN)/python" -m pytest -n $(WORKERS)

test-lowest: $(LOWEST_STAMP)
	"$(LOWEST_VENV)/bin/python" -m pytest -n $(WORKERS)

lint: $(STAMP)
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"

$(STAMP): pyproject.toml src/gradalign/_version.py
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo 'GradAlign needs Python 3.10 or newer, and there is no $(PYTHON): make install PYTHON=/path/to/python3' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "GradAlign needs Python 3.10 or newer, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1): make install PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo 'Python comes without its venv module here: install it (on Debian and Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	"$(BIN)/python" -m pip install --editable '.[all]'
	@touch "$@"

$(LOWEST_STAMP): pyproject.toml src/gradalign/_version.py
	@for python in $(LOWEST_PYTHON); do "$$python" -c 'import ensurepip, venv' 2>/dev/null && break; python=; done; \
	  test -n "$$python" || { echo 'TensorFlow 2.18 runs on Python 3.10 to 3.12, and none of these works here: $(LOWEST_PYTHON): make test-lowest LOWEST_PYTHON=/path/to/python' >&2; exit 1; }; \
	  "$$python" -m venv "$(LOWEST_VENV)"
	sed -nE 's/^ *"([a-zA-Z0-9.-]+)>=([0-9.]+)".*/\1==\2/p' pyproject.toml >"$(LOWEST_VENV)/lowest.txt"
	"$(LOWEST_VENV)/bin/python" -m pip install --constraint "$(LOWEST_VENV)/lowest.txt" --editable '.[test]'
	@touch "$@"
