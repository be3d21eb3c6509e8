# Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= python3
PORT ?= 8000
BIN := .venv/bin

.PHONY: serve test prove lint clean

serve: .venv/installed
	$(BIN)/eagle3-serve --demo --port $(PORT)

test: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The proofs at full length; `make test` runs their short form.
prove: .venv/installed-test
	$(BIN)/python -m pytest tests/proofs --long

lint: .venv/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf .venv

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --disable-pip-version-check --editable '.[test]'
	touch .venv/installed $@
