# Everything needs only Python 3.11 or 3.12 and pip; `make env` does the rest.  Tools run as `.venv/bin/python -m tool`,
# so that a moved checkout still works.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
UV ?= uv
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.up-to-date
HEAVY := cv2, hypothesis, keras, pytest, simplejpeg, sklearn.datasets, tensorflow_datasets, tensorflow_transform.beam
# --no-deps: the lock is complete, and asking the packages again would bring back what requirements/ leaves out on purpose.
# --no-compile: byte-compiling all of it takes 50 s on one core, and most is never imported.  The import that checks the
# installation compiles the rest, even where PYTHONDONTWRITEBYTECODE is set: without, each TensorFlow start takes 16 s, not 6.
PIP := $(RUN) -m pip --quiet --no-input --disable-pip-version-check install --no-deps --no-compile
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])

.PHONY: help env demo test lint format types lock clean

help:  ## print this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1 \t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

env: $(STAMP)  ## create .venv with everything in requirements/dev.txt; does nothing when up to date

$(STAMP): requirements/dev.txt setup.py
	@if ! $(RUN) -c '$(USABLE)' 2>/dev/null; then \
	  for python in '$(PYTHON)' python3.11 python3.12 none; do \
	    "$$python" -c '$(USABLE)' >/dev/null 2>&1 && break; \
	  done; \
	  if [ "$$python" = none ]; then \
	    echo "make env: needs Python 3.11 or 3.12 with its venv module, but $(PYTHON) is" \
	      "$$('$(PYTHON)' --version 2>/dev/null || echo not there) and neither python3.11 nor python3.12 will do." >&2; \
	    echo "make env: install one (on Debian with the python3-venv package), or say: make env PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "1/4 creating $(VENV) with $$python, $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV); \
	else \
	  echo "1/4 keeping $(VENV), $$($(RUN) --version)"; \
	fi
	@echo "2/4 installing the $$(grep -c '^[a-z]' $<) packages of $<: one to three minutes, 3 GB on disk"
	@$(PIP) --requirement $<
	@echo "3/4 installing shardsmith itself, editable"
	@$(PIP) --no-build-isolation --editable .
	@echo "4/4 importing it all once: half a minute"
	@log=$$(env -u PYTHONDONTWRITEBYTECODE $(RUN) -c 'import $(HEAVY)' 2>&1) || { echo "$$log" >&2; exit 1; }
	@touch $@
	@echo "ready. Next: make demo (builds a dataset and trains on it), make test, or: source $(VENV)/bin/activate"

demo: env  ## raw images -> shards -> verify -> train on two workers -> evaluate -> export -> predict; all under out/demo
	rm -rf out/demo
	$(RUN) -m pipelines.demo out/demo/raw
	$(RUN) -m pipelines build configs/demo.yaml
	$(RUN) -m shards verify out/demo/dataset
	$(RUN) -m trainer train configs/train_demo.yaml --local-workers 2
	$(RUN) -m trainer evaluate configs/train_demo.yaml
	$(RUN) -m trainer export configs/train_demo.yaml
	$(RUN) -m trainer predict out/demo/raw/7/digit_0007.png --model out/demo/run/export
	@echo
	@echo "raw images         out/demo/raw"
	@echo "dataset            out/demo/dataset   (open report.html in a browser)"
	@echo "checkpoints, logs  out/demo/run"
	@echo "exported model     out/demo/run/export"
	@echo "next: your own images, see README.md: python -m pipelines build --source DIR --output OUT --resize center_crop:256"

test: env  ## run the tests; one of them: make test ARGS='-n 0 -k name'
	$(RUN) -m pytest $(ARGS)

lint: env  ## check style and formatting
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

format: env  ## format, and fix what can be fixed
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

types: env  ## check types
	$(RUN) -m mypy

# dev is resolved first and constrains the others, so that all three agree.  Known versions are kept: to move them, make
# lock ARGS=--upgrade, or ARGS='--upgrade-package numpy'.
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --custom-compile-command 'make lock' $(ARGS) \
  --overrides requirements/overrides.txt --excludes requirements/excludes.txt setup.py

lock:  ## resolve setup.py into requirements/*.txt (needs uv: pip install uv)
	@command -v $(UV) >/dev/null || { echo "make lock: $(UV) not found; pip install uv, or make lock UV=/path/to/uv" >&2; exit 1; }
	$(LOCK) --extra dev --output-file requirements/dev.txt >/dev/null
	$(LOCK) --extra pipelines --constraints requirements/dev.txt --output-file requirements/pipelines.txt >/dev/null
	$(LOCK) --extra trainer --constraints requirements/dev.txt --output-file requirements/trainer.txt >/dev/null
	@sed -i.old '/^    #   -c requirements\/dev.txt$$/d' requirements/{pipelines,trainer}.txt
	@rm -rf requirements/*.old shardsmith.egg-info
	@grep -c '^[a-z]' requirements/{dev,pipelines,trainer}.txt

clean:  ## remove caches, build products and out/demo; keeps .venv
	rm -rf out/demo build dist shardsmith.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
