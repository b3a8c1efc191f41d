# `make demo` and `make test` need nothing but Python 3.10+ and a network that reaches a package index.
PYTHON ?= python3
BIN := .venv/bin
# the tested versions, torch's CPU build where the index has it; CONSTRAINTS= lets pip choose within pyproject's ranges
CONSTRAINTS ?= -c constraints.txt

.PHONY: demo test quality bench docs clean

# one stamp: made again when the dependencies change
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/python recipes/headline/demo.py --output_dir demo

# a file is run by one worker, so that what its tests share is made once
test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

quality: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python benchmarks/suite.py

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv demo runs build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
