# The two commands of the README (demo, test) and the habits of a developer. Everything is installed into .venv by the project's own files.
PYTHON ?= python3
VENV := .venv
RCA := $(VENV)/bin/rca
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet

.PHONY: demo setup test check format docs bench clean

demo: $(VENV)/.user  ## one real incident, start to finish (no torch needed)
	$(RCA) diagnose data/cases/lock_hang

test: $(VENV)/.dev  ## all tests, fast ones first
	$(VENV)/bin/python -m pytest -m "not slow and not live"
	$(VENV)/bin/python -m pytest -m "slow or live"

check: $(VENV)/.dev  ## style, types, architecture
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest tests/test_architecture.py

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.dev  ## regenerate the generated pages
	$(VENV)/bin/python docs/generate.py

bench: $(VENV)/.dev  ## against torchfrtrace and plain unpickling, same files, one run
	$(VENV)/bin/python bench/run.py

setup: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable ".[dev,drill,capture,explore]"
	touch $(VENV)/.user $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
