# The two commands of the README (demo, test) and the habits of a developer. Everything is installed into .venv by the project's own files.
PYTHON ?= python3
VENV := .venv
RCA := $(VENV)/bin/rca
CHROMIUM := /usr/bin/chromium
CASES ?= ../shared/cases
FUZZ_SECONDS ?= 60
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet

.PHONY: demo full setup test test-browser check format docs accuracy calibrate bench fuzz scores clean

demo: $(VENV)/.user  ## one real incident, start to finish (no torch needed)
	$(RCA) diagnose data/cases/lock_hang

test: $(VENV)/.dev  ## all tests, fast ones first
	$(VENV)/bin/python -m pytest -n auto --dist worksteal -m "not live and not browser"
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m "live and not browser"
	$(MAKE) test-browser

test-browser: $(VENV)/.dev | $(CHROMIUM)  ## the explorer in headless Chromium
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m browser

$(CHROMIUM):
	@[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null || \
		{ echo "the browser tests need $(CHROMIUM): install the package chromium (as root, where there is apt-get, make does)" >&2; exit 1; }
	apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium

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

accuracy: $(VENV)/.dev  ## play the simulated campaign (15 minutes on two quiet cores) and write docs/accuracy.md; cut short, it goes on
	$(RCA) drill campaign --out build/campaign || [ $$? = 1 ]
	$(VENV)/bin/python docs/generate.py --campaign build/campaign/campaign.json

calibrate: $(VENV)/.dev  ## fit the weights of the signs anew (rca/catalogue/bits.csv)
	$(RCA) drill campaign --calibrate --out build/calibration

bench: $(VENV)/.dev  ## against torchfrtrace, plain unpickling and plain readers of logs, same files, one run
	$(VENV)/bin/python bench/run.py

fuzz: $(VENV)/.fuzz  ## every collector on made-up input, FUZZ_SECONDS each, and on long runs
	$(VENV)/bin/python fuzz/run.py --seconds $(FUZZ_SECONDS)

scores: $(VENV)/.user  ## what the readers make of labelled cases, kind by kind (CASES=FOLDER with its score.py)
	@[ -f "$(CASES)/score.py" ] || { echo "no labelled cases in $(CASES): name their folder with CASES=FOLDER" >&2; exit 2; }
	$(VENV)/bin/python "$(CASES)/score.py" "$(abspath $(RCA))"

setup: $(VENV)/.dev

full: pyproject.toml constraints.txt | $(VENV)/bin/python  ## what capture, replay, drills and the explorer need
	$(PIP) install --constraint constraints.txt --editable ".[capture,drill,explore]"
	touch $(VENV)/.user

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable ".[dev,drill,capture,explore]"
	touch $(VENV)/.user $@

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) install --constraint constraints.txt --editable ".[fuzz]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
