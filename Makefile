# The main targets are `make run` and `make test`. Both install what they need. They require only Python and make.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test run test test-one check bench-log bench-flow bench-serve bench-page cluster soak record-kafka lock clean

# The first Python that is new enough; choose another one with `make PYTHON=...`.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$python; break; }; done)
BIN := .venv/bin
# The download cache is shared with other clones. If the home directory is not writable, the cache is in this directory.
ifeq ($(shell test -w "$${XDG_CACHE_HOME:-$$HOME}" && echo yes),)
export HEADRACE_CACHE ?= $(CURDIR)/.cache
endif
FOR ?=
# Address of the web page of `make run` (default: a free port on 127.0.0.1).
PAGE ?= 127.0.0.1:0
ARGS ?=
# Run the tests in three processes; tests/plugins/schedule.py assigns the test files to them.
BESIDE := -n 3 --dist loadfile

help:
	@echo 'make run            install, then run the example shop with generated traffic and a live display'
	@echo 'make run FOR=60     the same for 60 seconds, then verify every view'
	@echo 'make test           install everything, then run all tests'
	@echo 'make test-one T=... run one test, for example T=tests/unit/records or T="-k torn_last_batch"'
	@echo 'make check          run ruff, mypy and import-linter'
	@echo 'make setup          install the headrace command at $(BIN)/headrace, Spark and its dependencies'
	@echo 'make setup-test     install everything that tests, checks and benchmarks need'
	@echo 'make bench-log      measure the log and compare it with Apache Kafka; results in bench/results/'
	@echo 'make bench-flow     measure flows, views, stores and settings; results in bench/results/; select parts with ARGS="--only ..."'
	@echo 'make bench-serve    measure the server: reads, fan-out, subscribers, reads of own writes; select parts with ARGS="--only ..."'
	@echo 'make bench-page     measure the web page in Chromium: size, rendering, updates, searches, one hour of use; select parts with ARGS="--only ..."'
	@echo 'make cluster        run the shop on three Kafka nodes and a Spark cluster, and kill one node of each'
	@echo 'make soak           run the full crash and fault tests, the tests that are too long for make test, and the comparisons with a live Apache Kafka; results in bench/results/'
	@echo 'make record-kafka   run the comparisons with a live Apache Kafka, and write its responses to tests/recordings/'
	@echo 'make lock           resolve the dependencies again and write the lock files'
	@echo 'make clean          remove everything that setup and tests created in this directory'

setup: _python
	@$(PYTHON) -m tools.setup run

setup-test: _python
	@$(PYTHON) -m tools.setup test

run: setup
	@$(BIN)/headrace run examples.shop:app --feed examples.shop.traffic:feed --listen 127.0.0.1:0 --serve $(PAGE) --data build/shop \
		--watch 'SELECT product_id, amount, pieces FROM ranking ORDER BY amount DESC LIMIT 5' \
		$(if $(FOR),--for $(FOR) --verify)

test: setup-test
	@$(BIN)/python -m pytest --capabilities --soak without $(BESIDE)

test-one: setup-test
	@$(BIN)/python -m pytest $(T)

check: setup-test
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench-log: setup-test
	@$(BIN)/python -m bench.log
	@$(BIN)/python -m bench.log.backup
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

soak: setup-test
	@$(BIN)/python -m pytest --soak only; tests=$$?; $(BIN)/python -m pytest --kafka live; alike=$$?; \
		$(BIN)/python -m bench.soak; held=$$?; $(BIN)/python -m bench.pages && test $$tests = 0 && test $$alike = 0 && exit $$held

record-kafka: setup-test
	@$(BIN)/python -m pytest --kafka record

cluster: setup-test
	@$(BIN)/python -m pytest --soak only tests/cluster

lock: setup-test
	@$(BIN)/python -m tools.lock

clean:
	@rm -rf .venv .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info src/headrace/records/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: _python
_python:
	@test -n "$(PYTHON)" || { \
		echo 'error: no Python 3.11 or newer was found' >&2; \
		echo 'next step: install Python (Debian: apt-get install python3 python3-venv), or set its path: make PYTHON=/path/to/python3 ...' >&2; \
		exit 1; }
