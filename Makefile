# Every command of the project. `make help` prints them with one sentence each.
# Paths are relative, so that a checkout may be in any folder; make 3.81 is enough.

PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/agentflow-setup
DEV := .venv/agentflow-dev
# Many tests wait for a lease, a process or a page; a third worker on two cores is done sooner, and costs more than it saves.
PYTEST := $(PY) -m pytest -p tests.support.no_rfc3987
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=60 --nbval-sanitize-with tests/support/nbval-sanitize.cfg
NOTEBOOKS := $(wildcard notebooks)

# Installing compiles nothing, so what is imported has to be kept, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

# A file of this folder's, such as random.py, takes no module's place while we install and check.
$(STAMP) $(DEV) dbos site lint lock: export PYTHONSAFEPATH := 1

# A .venv whose Python is gone, or which was made in another folder, is made again.
HEALTH := $(shell $(PY) -c 'import sys; print(open("$(STAMP)").read() == sys.prefix)' 2>/dev/null)
ifneq ($(HEALTH),True)
$(STAMP): remake
endif

.PHONY: help setup dbos lab check test test-notebooks test-long test-unpinned lint site bench lock clean remake browser
.DELETE_ON_ERROR:

help: ## prints this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1@\2/p' Makefile | awk -F@ '{printf "%-20s %s\n", $$1, $$2}'

setup: $(STAMP) ## installs what running needs into .venv from requirements.lock, unless that is already done

dbos: $(STAMP) ## adds DBOS to .venv: another engine, which carries the same workflow in notebook 09
	@$(call part,dbos) >.venv/dbos.lock
	$(call install,.venv/dbos.lock)

lab: $(STAMP) ## starts PostgreSQL, migrates it and opens JupyterLab on the first notebook
	@[ -x .venv/bin/agentflow ] || $(MAKE) --always-make setup
	.venv/bin/agentflow lab

test: browser ## runs every test in under ten minutes: unit, integration, browser and notebooks
	$(PYTEST) $(PARALLEL) -m "not long" $(NBVAL) tests $(NOTEBOOKS)

# What a change in the engine, in a statement or in the words of a history breaks first.
FAST := tests/house/test_arrows.py tests/house/test_names.py tests/house/test_house.py tests/engine/test_tutorial.py tests/engine/test_statements.py \
	tests/engine/test_steps.py tests/engine/test_identity.py tests/engine/test_events.py tests/lab/history tests/lab/schedule/test_grammar.py

check: lint ## checks style, types and the promises that are quick to check: under a tenth of `make test`
	$(PYTEST) -p no:nbval -p no:schemathesis -q -m "not long" $(FAST)

test-notebooks: $(DEV) ## runs every notebook twice and compares what it prints with what is committed
	$(PYTEST) $(PARALLEL) $(NBVAL) notebooks

test-long: browser ## runs the tests that take too long for `make test`
	$(PYTEST) $(PARALLEL) -m long --timeout 3600 tests

# Versions newer than the lock's may break us; the weekly job (.github/workflows/weekly.yml) finds out before a user does.
test-unpinned: browser ## runs the tests of `make test` with the newest versions that pyproject.toml allows, in a separate environment
	"$(PYTHON)" -m venv build/unpinned
	build/unpinned/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -e ".[dev]"
	build/unpinned/bin/python -m pytest $(PARALLEL) -m "not long" --deselect tests/house/test_house.py::test_what_runs_here_is_what_the_lock_says \
		--deselect tests/house/test_imports.py::test_an_import_and_a_command_bring_in_the_packages_of_the_list_and_no_other \
		--deselect tests/house/test_house.py::test_an_installer_takes_from_the_lock_what_running_needs_and_no_more \
		$(NBVAL) tests $(NOTEBOOKS)

lint: $(DEV) ## checks style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy agentflow

site: $(STAMP) ## builds the course as pages in artifacts/site, which open without a network
	$(PY) -m agentflow.lab.site

bench: $(DEV) ## measures the engine and writes docs/benchmarks.md
	$(PY) -m tests.bench

# Universal: one lock for Linux, macOS and Windows, Python 3.11 to 3.14. The loop proves that nothing has to be compiled.
# What running needs has no mark; the rest gets the mark of its part, for `part` above.
COMPILE = build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --no-header

lock: ## writes requirements.lock after a change in pyproject.toml; LOCK_FLAGS=--upgrade takes newer versions
	"$(PYTHON)" -m venv build/lock
	$(call part,uv) >build/lock/uv.lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check $(LOCKED) build/lock/uv.lock
	sed "s/ ; extra == '[a-z]*' and (\(.*\))/ ; \1/; s/ ; extra == '[a-z]*'//" requirements.lock >build/lock/all
	$(COMPILE) --all-extras --generate-hashes --annotation-style line $(LOCK_FLAGS) --output-file build/lock/all pyproject.toml >build/lock/log
	$(COMPILE) --extra setup --no-annotate --constraints build/lock/all --output-file build/lock/run pyproject.toml >build/lock/log
	$(COMPILE) --extra dbos --no-annotate --constraints build/lock/all --output-file build/lock/dbos pyproject.toml >build/lock/log
	@for system in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-apple-darwin aarch64-apple-darwin x86_64-pc-windows-msvc; do \
		for version in 3.11 3.12 3.13 3.14; do \
			build/lock/bin/uv pip compile --quiet --no-deps --only-binary :all: --python-platform $$system \
				--python-version $$version --output-file build/lock/check build/lock/all >build/lock/log || exit 1; \
		done; \
	done
	@awk -F == 'FILENAME ~ /run$$/ { run[$$1]; next } FILENAME ~ /dbos$$/ { dbos[$$1]; next } /^[a-z0-9]/ && !($$1 in run) { \
		mark = " ; extra == \047" ($$1 == "uv" ? "uv" : $$1 in dbos ? "dbos" : "dev") "\047"; \
		if (sub(/ ; /, mark " and (")) sub(/ .$$/, ") \\"); else sub(/ .$$/, mark " \\") } { print }' \
		build/lock/run build/lock/dbos build/lock/all >requirements.lock
	@echo "requirements.lock: every package has a wheel for Linux, macOS and Windows and Python 3.11 to 3.14."

clean: ## removes .venv and what tests and builds left behind; the laboratory's data stays
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find agentflow tests -name __pycache__ -type d -prune -exec rm -rf {} +

browser: $(DEV)
	@$(PY) -m tests.support.chromium

remake: ;

# The lock has four parts: what running needs, and three that an installer skips, because `extra == 'dev'` (tests and checks),
# `extra == 'dbos'` and `extra == 'uv'` hold in no environment. $(call part,NAME) prints one for an installer that should not skip it.
part = sed -n "/extra == '$(1)'/,/\# via/{s/extra == '$(1)'/python_version >= '3'/;p;}" requirements.lock
LOCKED := --only-binary :all: --require-hashes --no-deps -r
OURSELVES := --no-deps --no-build-isolation --no-index -e .

# uv takes seconds where pip takes a minute or more. It and its cache are in .venv/uv and go when the work is done, so nothing may
# link to the cache by name. The index is pip's.
uv := .venv/uv/bin/uv pip install --quiet --python $(PY)
pip := -m pip install --quiet --disable-pip-version-check --no-cache-dir
index = $$("$$python" -m pip config list 2>/dev/null | sed -n "s/^[^.]*\.index-url='\(.*\)'$$/\1/p" | head -n 1)
# The lock has a pip for .venv, too. Until it is there, the one of $(PYTHON) fetches uv: ensurepip takes four seconds.
has_pip = -c 'import pip' 2>/dev/null
define install
	@$(call part,uv) >.venv/uv.lock
	@python=$(PY); $(PY) $(has_pip) || if "$(PYTHON)" $(has_pip); then python="$(PYTHON)"; else $(PY) -m ensurepip >/dev/null; fi; \
		{ "$$python" $(pip) --target .venv/uv $(LOCKED) .venv/uv.lock; \
		export UV_LINK_MODE=hardlink UV_CACHE_DIR="$${UV_CACHE_DIR:-.venv/uv/cache}" UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(index)}"; \
		$(uv) $(LOCKED) $(1) && $(uv) $(OURSELVES); } 2>.venv/uv.log || { \
		echo "uv cannot install here, for the reason in .venv/uv.log, so pip does: it takes a minute or two."; \
		$(PY) $(has_pip) || $(PY) -m ensurepip >/dev/null; \
		$(PY) $(pip) $(LOCKED) $(1) && $(PY) $(pip) $(OURSELVES); }
	@rm -rf .venv/uv
endef

$(STAMP): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) was not found: AgentFlow needs Python 3.11 or newer."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.version_info >= (3, 11) or sys.exit("AgentFlow needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Install a newer one, then name it: make setup PYTHON=python3.13" % sys.version_info[:2])'
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a local environment. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@if [ "$(HEALTH)" != True ]; then rm -rf .venv && "$(PYTHON)" -m venv --without-pip .venv; fi
	@echo "Installing what running needs into .venv."
	$(call install,requirements.lock)
	@$(PY) -c 'import sys; open("$(STAMP)", "w").write(sys.prefix)'
	@echo "Done. Next: make lab, or make test."

$(DEV): $(STAMP)
	@echo "Installing what tests and checks need into .venv."
	@{ $(call part,dev); $(call part,dbos); } >.venv/dev.lock
	$(call install,.venv/dev.lock)
	@touch $(DEV)
