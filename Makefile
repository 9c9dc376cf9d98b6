# `make demo` and `make test` need only Python >= 3.11 (with venv and pip) and make: each builds .venv from the
# hash-checked locks when it is missing or older than they are. Packages come through pip's own configuration.

# The first interpreter that is new enough; a shim that exists but does not run is passed over.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# One more than the cores of a small machine: tests with Spark wait a lot.
PYTEST_WORKERS ?= 3
UV_VERSION := 0.13.7
UV ?= $(VENV)-lock/bin/uv

export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup servers demo test lint bench soak faults docs fmt lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z]*\):.*## */  make \1: /p' $(MAKEFILE_LIST)

setup: $(VENV)/.package $(VENV)/.dev  ## make .venv with the package and the development tools

demo: $(VENV)/.package  ## a stream of sales through Spark's own join and through semistream, with a picture
	$(BIN)/semistream demo --picture build/demo.html

servers:  ## try to install PostgreSQL and MariaDB, which tests start; where they are missing these tests are skipped
	@sh tests/sources/install.sh

# The checkers run on one core: meanwhile the other one compiles the kernels.
test: setup servers  ## all checks, then the test suite
	@$(BIN)/python -c 'import semistream.algorithms.registry, semistream.lab.workloads.relation' & compiler=$$!; \
		$(MAKE) --no-print-directory lint; status=$$?; wait $$compiler; exit $$status
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS)

lint: setup  ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src
	$(BIN)/lint-imports --no-cache

bench: setup  ## compare the operators with each other, Polars and DuckDB, and enrich with Spark's own join
	$(BIN)/python benchmarks/operators.py
	$(BIN)/python benchmarks/spark.py

soak: setup  ## kill Spark queries again and again, and compare what they wrote with the join (15 minutes)
	$(BIN)/python -m tests.spark.soak $(SOAK_FLAGS)

faults: setup  ## kill or fail every call that changes a file, flip every byte, and compare (minutes)
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.faults.spark
	$(BIN)/python -m pytest -m thorough
	$(BIN)/python -m pytest --hypothesis-profile=thorough tests/algorithms/test_fuzz.py tests/engine/test_snapshot.py

docs: $(VENV)-docs/.docs  ## build the site in build/site; a warning is an error
	$(VENV)-docs/bin/properdocs build --strict

fmt: setup  ## sort imports, fix what can be fixed, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Nothing is built but pyspark, which has no wheel, and this package. Their build backends are in build.lock and
# there beforehand: without isolation nothing unpinned is fetched.
PIP_LOCKED = $(PIP) install --quiet --require-hashes --no-build-isolation --only-binary :all: --no-binary pyspark

# A changed lock starts .venv anew, so that nothing an older one installed stays behind.
$(VENV)/.runtime: requirements/build.lock requirements/runtime.lock
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 not found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
	$(PIP_LOCKED) -r requirements/build.lock
	$(PIP_LOCKED) -r requirements/runtime.lock
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.runtime
	$(PIP_LOCKED) -r requirements/dev.lock
	@touch $@

$(VENV)/.package: pyproject.toml $(VENV)/.runtime
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The tools that build the site read the source without running it: they need nothing of .venv, nor it of them.
$(VENV)-docs/.docs: requirements/docs.lock
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 not found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements/docs.lock
	@touch $@

# uv makes one lock for all platforms and Python versions. It does not read pip's configuration; where a mirror
# is needed, set UV_DEFAULT_INDEX. `make lock LOCK_FLAGS=--upgrade` takes new versions.
LOCK_FLAGS ?=
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-find-links --custom-compile-command "make lock" $(LOCK_FLAGS)
PROJECT = pyproject.toml --extra spark --extra delta --group build
DATABASES = --extra duckdb --extra mysql --extra postgresql --extra sqlite

lock: $(filter $(VENV)-lock/%,$(UV))  ## resolve the dependencies again and write the locks
	$(COMPILE) $(PROJECT) --output-file requirements/runtime.lock
	$(COMPILE) $(PROJECT) --extra iceberg $(DATABASES) --group dev --constraint requirements/runtime.lock --output-file requirements/dev.lock
	$(COMPILE) --group build --constraint requirements/runtime.lock --output-file requirements/build.lock
	$(COMPILE) --group docs --output-file requirements/docs.lock

$(VENV)-lock/bin/uv:
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv==$(UV_VERSION)

clean:  ## remove everything that is made, .venv too
	rm -rf $(VENV) $(VENV)-docs $(VENV)-lock build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
