# The two that matter: `make run` and `make test`. Both set up what they need, from a machine with Python and make only.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test run test test-one check bench-log bench-flow bench-serve bench-page cluster soak lock clean

# The first Python that is new enough; name another with `make PYTHON=...`.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$python; break; }; done)
BIN := .venv/bin
# What is fetched once is shared with other clones, unless there is no home that can be written.
ifeq ($(shell test -w "$${XDG_CACHE_HOME:-$$HOME}" && echo yes),)
export HEADRACE_CACHE ?= $(CURDIR)/.cache
endif
FOR ?=
# Where `make run` has its page: a free port, unless one is named.
PAGE ?= 127.0.0.1:0
ARGS ?=
# How tests run beside each other.
BESIDE := -n 3 --dist loadfile --no-loadscope-reorder

help:
	@echo 'make run            set up what is needed, run the shop with generated traffic, show it live'
	@echo 'make run FOR=60     the same, ending by itself after 60 seconds with a proof of every view'
	@echo 'make test           set up everything, run all tests'
	@echo 'make test-one T=... one test, for example T=tests/unit/records or T="-k torn_last_batch"'
	@echo 'make check          ruff, mypy, import-linter'
	@echo 'make setup          the command, at $(BIN)/headrace, and Spark with what it needs'
	@echo 'make setup-test     all that tests, checks and benchmarks need'
	@echo 'make bench-log      measure the log beside Apache Kafka; results in bench/results/'
	@echo 'make bench-flow     measure flows, views, stores and settings; results in bench/results/, parts by ARGS="--only ..."'
	@echo 'make bench-serve    measure the server: reads, fan-out, subscribers, own writes; parts by ARGS="--only ..."'
	@echo 'make bench-page     measure the page in Chromium: weight, drawing, updates, searches, an hour open; parts by ARGS="--only ..."'
	@echo 'make cluster        the shop on three nodes of Kafka and a Spark cluster, one of each killed; its secret'
	@echo 'make soak           the crash and fault tests at full count; results in bench/results/faults.json'
	@echo 'make lock           resolve the dependencies again and write the lock files'
	@echo 'make clean          remove what set-up and tests left in this folder'

setup: _python
	@$(PYTHON) -m tools.setup run

setup-test: _python
	@$(PYTHON) -m tools.setup test

run: setup
	@$(BIN)/headrace run examples.shop:app --feed examples.shop.traffic:feed --listen 127.0.0.1:0 --serve $(PAGE) --data build/shop \
		--watch 'SELECT product_id, amount, pieces FROM ranking ORDER BY CAST(amount AS REAL) DESC LIMIT 5' \
		$(if $(FOR),--for $(FOR) --verify)

test: setup-test
	@$(BIN)/python -m pytest --capabilities $(BESIDE) --ignore tests/cluster/test_whole_cluster.py --ignore tests/cluster/test_spark_secret.py

test-one: setup-test
	@$(BIN)/python -m pytest $(T)

check: setup-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench-log: setup-test
	@$(BIN)/python -m bench.log
	@$(BIN)/python -m bench.backup
	@$(BIN)/python -m bench.pages

bench-flow: setup-test
	@$(BIN)/python -m bench.flow $(ARGS)
	@$(BIN)/python -m bench.pages

bench-serve: setup-test
	@$(BIN)/python -m bench.serve $(ARGS)
	@$(BIN)/python -m bench.pages

bench-page: setup-test
	@$(BIN)/python -m bench.page $(ARGS)
	@$(BIN)/python -m bench.pages

soak: setup-test cluster
	@$(BIN)/python -m bench.soak; held=$$?; $(BIN)/python -m bench.pages && exit $$held

cluster: setup-test
	@$(BIN)/python -m pytest tests/cluster/test_spark_secret.py tests/cluster/test_whole_cluster.py

lock: setup-test
	@$(BIN)/python -m tools.lock

clean:
	@rm -rf .venv .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info src/headrace/records/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: _python
_python:
	@test -n "$(PYTHON)" || { \
		echo 'error: no Python 3.11 or newer was found' >&2; \
		echo 'next step: install one (Debian: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3 ...' >&2; \
		exit 1; }
