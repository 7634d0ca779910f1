# Everything a fresh machine needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS := $(shell command -v nvidia-smi >/dev/null 2>&1 || echo "-c constraints-cpu.txt")

.PHONY: demo test check clean

$(VENV)/ready: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet $(CONSTRAINTS) --editable ".[dev]"
	touch $@

demo: $(VENV)/ready
	$(VENV)/bin/evokernel evolve experiments/tasks/layernorm_gelu.py --target cpp --time 60

test: $(VENV)/ready
	$(VENV)/bin/python -m pytest

check: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
