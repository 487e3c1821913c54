# Everything a developer does. Paths are relative, so a checkout may lie in a folder with a space in its name.
PY := .venv/bin/python
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup test test-slow check lint format demo bench screenshots docs site lock dist check-wheel images image-trainer image-airflow clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@echo 'ARGS="..." is handed on to pytest and the demo: make test ARGS="tests/unit -k budget"'

setup: ## build .venv from the locks; instant when nothing changed (PYTHON=... picks the interpreter)
	@sh scripts/setup

# Tests mostly wait: for a cluster, for Airflow, for a clock. Four processes keep two cores busy.
JOBS ?= 4
test: setup ## every test that can run here; what cannot is skipped with a reason
	$(PY) -m pytest -n $(JOBS) $(ARGS)

test-slow: setup ## the long form of the proofs
	$(PY) -m pytest -m slow $(ARGS)

lint: setup ## style, types, layers, and plain English
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PY) -m scripts.plain_english
	@sh scripts/build_pages $(PY) typecheck

check: ## lint, then test: what CI runs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test

format: setup ## bring the code into shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

demo: setup ## watch a real Airflow train, lose a worker, grow and promote (KEEP=1 leaves it up)
	@$(PY) -m demo $(ARGS)

bench: setup ## measure, and print the figures
	$(PY) -m pytest tests/bench -m bench -s $(ARGS)

screenshots: setup ## pictures of the web pages in all states, light and dark, wide and narrow, into .screenshots/
	@sh scripts/build_pages $(PY) screenshots

docs: setup ## regenerate what is generated in docs/
	$(PY) docs/generate.py

site: docs ## build the site of docs/ into site/; a dead link or anchor is an error (ARGS=serve: look at it)
	@sh scripts/setup docs
	NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs $(or $(ARGS),build) --strict

# The locks hold for Linux and macOS and Python 3.11 on; versions stay unless UPGRADE=1. dev.txt decides for all.
COMPILE = $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-emit-index-url --no-emit-package airflow-elastic $(if $(UPGRADE),--upgrade)
lock: setup ## regenerate requirements/*.txt from *.in and pyproject.toml (UPGRADE=1: newest versions)
	$(COMPILE) requirements/dev.in -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt requirements/airflow.in -o requirements/airflow.txt
	$(COMPILE) -c requirements/dev.txt requirements/runtime.in -o requirements/runtime.txt
	$(COMPILE) -c requirements/dev.txt requirements/bootstrap.in -o requirements/bootstrap.txt
	$(COMPILE) -c requirements/dev.txt requirements/dist.in -o requirements/dist.txt
	$(COMPILE) -c requirements/dev.txt requirements/dlrover.in -o requirements/dlrover.txt
	$(COMPILE) -c requirements/dev.txt requirements/docs.in -o requirements/docs.txt
	$(COMPILE) requirements/goodput.in -o requirements/goodput.txt

# These two need no .venv: what builds and checks is in an environment of its own, without torch.
DIST_PY := build/dist-env/bin/python
dist: ## build the wheel and the source distribution into dist/, and check them; takes seconds
	@sh scripts/setup dist
	rm -rf dist
	$(DIST_PY) -m build --no-isolation --outdir dist .
	$(DIST_PY) -m twine check --strict dist/*
	$(DIST_PY) -m check_wheel_contents dist/*.whl

check-wheel: dist ## install the wheel with each extra by itself, and try it (ARGS="--python 3.13 --extra s3")
	$(DIST_PY) scripts/check_wheel.py $(ARGS) dist/*.whl

# With another program, and further words for it: make images BUILD="buildah build" ARGS="--build-arg BASE=base:1"
BUILD ?= docker build
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' airflow_elastic/__init__.py)
images: image-trainer image-airflow ## build both images of docker/ (image-trainer, image-airflow: one of them)
image-trainer image-airflow: image-%: dist
	$(BUILD) -f docker/$*.Dockerfile -t airflow-elastic-$*:$(VERSION) \
	  --label org.opencontainers.image.version=$(VERSION) $(ARGS) .

clean: ## remove .venv, caches and build output
	rm -rf .venv .dlrover .docs .goodput .demo .setup.lock site dist build .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .screenshots
	rm -rf airflow_elastic/web/static airflow_elastic/web/ui/node_modules
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
