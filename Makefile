# make demo and make test are all that a new checkout needs: python3 (3.11 or later), pip, make and git.
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: demo test check bench clean

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gen needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/.installed
	$(RUN) examples/demo.py

test: .venv/.installed
	$(RUN) -m pytest -q

check: .venv/.installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest -q

bench: .venv/.installed
	$(RUN) -m benchmarks.throughput --devices cuda:0 cuda:1 cpu

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
