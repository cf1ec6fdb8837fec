# `make demo` and `make test` set up what they need in .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-frameworks bench lint check clean

demo: .venv/.demo
	@$(BIN)/ranktop demo $(DEMO)

# Most real jobs wait most of the time: three workers keep two cores busy. Hundreds of processes are started,
# each of which would compile ranktop anew where PYTHONDONTWRITEBYTECODE is set.
WORKERS ?= 3
test: .venv/.test
	@$(BIN)/python -m compileall -q tui agent probes
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--ignore tests/frameworks $(TESTS)

# Trainers, Prometheus, a browser, packages, and every command of the documentation: what needs the extra `frameworks`.
test-frameworks: .venv/.frameworks
	@$(BIN)/python -m compileall -q tui agent probes
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/frameworks

# What it costs: every table of docs/benchmarks.md, on a machine that has nothing else to do. BENCH="hub plan" runs two of
# them, BENCH=--short smoke runs, BENCH=--write puts the tables into docs/. nvtop (Debian: contrib) is compared where it is installed.
bench: .venv/.bench
	@$(BIN)/python -m compileall -q tui agent probes
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tests/bench/run.py $(BENCH)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test test-frameworks

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml
	@echo "installing ranktop and torch into .venv (once) ..." >&2
	@$(PIP) -e '.[demo]' '$(TORCH)'
	@touch $@

# DeepSpeed comes as source; none of its kernels is compiled.
.venv/.test: .venv/bin/python pyproject.toml
	DS_BUILD_OPS=0 $(PIP) -e '.[dev,deepspeed]' '$(TORCH)'
	@touch $@

.venv/.frameworks: .venv/.test pyproject.toml
	DS_BUILD_OPS=0 $(PIP) -e '.[dev,deepspeed,frameworks]' '$(TORCH)'
	@touch $@

.venv/.bench: .venv/.test pyproject.toml
	DS_BUILD_OPS=0 $(PIP) -e '.[dev,deepspeed,bench]' '$(TORCH)'
	@touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
