# Everything a fresh machine needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS := $(shell command -v nvidia-smi >/dev/null 2>&1 || echo "-c constraints-cpu.txt")
INSTALL = $(VENV)/bin/python -m pip install --quiet $(CONSTRAINTS) --editable

.PHONY: demo test check clean

$(VENV)/ready: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(INSTALL) .
	touch $@

# The tests also compile every CUDA kernel file, which needs no GPU but NVIDIA's compiler packages.
$(VENV)/ready-dev: $(VENV)/ready
	$(INSTALL) ".[dev,cuda]"
	touch $@

demo: $(VENV)/ready
	$(VENV)/bin/evokernel evolve experiments/tasks/layernorm_gelu.py --target cpp --time 45

test: $(VENV)/ready-dev
	$(VENV)/bin/python -m pytest

check: $(VENV)/ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
