# The interface of nosync: each target is one line into `python -m nosync`. `make help` lists them.
#
# P=<project>  BASE=pinned|latest|<id>  S=<series>  SOURCE=git|archive  FORCE=1  DRY=1  STRICT=1  JSON=1
# PYTHON=<interpreter>: use it for everything and install nothing (a GPU host without a package index).

PROJECTS := fairchem torch-sim liger-kernel physicsnemo
P ?=
BASE ?= pinned
S ?=
SOURCE ?=
TO ?=

ifdef PYTHON
TOOL_PYTHON := $(PYTHON)
CHECK_PYTHON := $(PYTHON)
EXPORT_PYTHON := $(PYTHON)
WHEELS_PYTHON := $(PYTHON)
LIBS_PYTHON := $(PYTHON)
TORCH_SIM_BENCH_PYTHON := $(PYTHON)
tool-env check-env export-env wheels-env libs torch-sim-bench-env:
else
TOOL_PYTHON := build/env/tool/bin/python
CHECK_PYTHON := build/env/check/bin/python
EXPORT_PYTHON := build/env/export/bin/python
WHEELS_PYTHON := build/env/wheels/bin/python
LIBS_PYTHON := build/env/libs/bin/python
TORCH_SIM_BENCH_PYTHON := build/env/bench-torch-sim/bin/python
tool-env:
	@scripts/bootstrap tool
check-env:
	@scripts/bootstrap check
export-env:
	@scripts/bootstrap export
wheels-env:
	@scripts/bootstrap wheels
libs: ## the environment that runs the libraries (torch and what the four import, some 7 GB)
	@scripts/bootstrap libs
torch-sim-bench-env:
	@scripts/bootstrap bench-torch-sim
endif

# One word for the shell, whatever is in it; a checkout may lie in a folder with a space or a quote in its name.
quoted = '$(subst ','\'',$(1))'
# The interpreter that the trees run on: a path, made absolute, or a command that the PATH knows. $(abspath) splits at spaces.
located = $(if $(findstring /,$(1)),$(if $(filter /%,$(firstword $(1))),$(1),$(CURDIR)/$(1)),$(1))
# $(1) runs the tool, on $(2) run the trees
NOSYNC_BY = PYTHONPATH=scripts NOSYNC_PYTHON=$(call quoted,$(call located,$(2))) $(call quoted,$(1)) -m nosync
NOSYNC_ON = $(call NOSYNC_BY,$(TOOL_PYTHON),$(1))
NOSYNC := $(call NOSYNC_ON,$(LIBS_PYTHON))
# $(call flag,<value>,<option>): 0, no, false and empty are no
flag = $(if $(filter-out 0 no false,$(1)),$(2))
JSON_FLAG := $(call flag,$(JSON),--json)
# standard output is then the report's alone
TO_STDERR := $(call flag,$(JSON),>&2)
FORCE_FLAG := $(call flag,$(FORCE),--force)
# every base, unless BASE was given
ALL_OR_BASE = $(if $(filter file,$(origin BASE)),all,$(BASE))
SOURCE_FLAG := $(if $(SOURCE),--source $(SOURCE))
HOSTSYNC_TESTS := PYTHONPATH=scripts:tests OMP_NUM_THREADS=1 $(call quoted,$(LIBS_PYTHON)) -m pytest -q -p nosync.hostsync.pytest_plugin tests/hostsync

.DEFAULT_GOAL := help
.PHONY: help tool-env check-env export-env wheels-env libs torch-sim-bench-env bench-torch-sim apply status test test-tool test-hostsync static check lock drift wheels env bench-report

help: ## this list
	@awk -F':.*## ' '/^[a-z%<>-]+:.*## / {sub(/%/, "<project>", $$1); printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  projects: $(PROJECTS)"
	@sed -n '3,4s/^# //p' $(MAKEFILE_LIST)

apply: tool-env ## make the base and patched trees of P (or all) on BASE, from whatever source is reachable
	@$(NOSYNC) apply $(JSON_FLAG) $(FORCE_FLAG) $(SOURCE_FLAG) --base $(BASE) $(P)

status: tool-env ## the matrix: series, base, source, state, last test results, upstream status
	@$(NOSYNC) status $(JSON_FLAG) $(P)

test: libs tool-env test-tool test-hostsync ## all tests: the tool's, the detector's, every project that can be reached
	@$(NOSYNC) test $(JSON_FLAG) $(SOURCE_FLAG) $(call flag,$(STRICT),--strict) --base $(ALL_OR_BASE) $(P)

test-%: libs tool-env ## rebuild the patched tree of one project, run its own tests and ours
	@$(NOSYNC) test $(JSON_FLAG) $(SOURCE_FLAG) $(call flag,$(STRICT),--strict) --base $(BASE) $*

test-tool: check-env ## the tests of the tool, on synthetic upstreams
	@PYTHONPATH=scripts:tests $(call quoted,$(CHECK_PYTHON)) -m pytest -q -n 2 tests/tool $(TO_STDERR)

test-hostsync: libs ## the tests of the host-sync detector
	@$(HOSTSYNC_TESTS) $(TO_STDERR)

refresh-%: tool-env ## write the commits of a patched tree into its patch files (S: series of new commits; DRY=1)
	@$(NOSYNC) refresh $(JSON_FLAG) --base $(BASE) --series "$(S)" $(call flag,$(DRY),--dry) $*

clean-%: tool-env ## remove a project's trees, of BASE or of all (FORCE=1: even with local work)
	@$(NOSYNC) clean $(JSON_FLAG) $(FORCE_FLAG) --base $(ALL_OR_BASE) $*

drift: tool-env ## would every series still apply to the newest release?
	@$(NOSYNC) drift $(JSON_FLAG) $(P)

rebase-%: tool-env ## take series to another base: TO=<release or git ref> (S, DRY=1); after a conflict CONTINUE=1 or ABORT=1
	@$(NOSYNC) rebase $(JSON_FLAG) $(FORCE_FLAG) --to "$(TO)" --series "$(S)" $(call flag,$(CONTINUE),--continue) $(call flag,$(ABORT),--abort) \
	  $(call flag,$(DRY),--dry) $*

export-%: export-env ## bundle, branch, patches, text and checklist of each pull request of a project (S; SEND=1 sends)
	@$(call NOSYNC_BY,$(EXPORT_PYTHON),$(LIBS_PYTHON)) export $(JSON_FLAG) $(SOURCE_FLAG) --base $(BASE) --series "$(S)" \
	  $(call flag,$(SEND),--send) $*

wheels: libs wheels-env ## installable wheels of the patched trees (P), each installed, imported and tested
	@$(call NOSYNC_BY,$(WHEELS_PYTHON),$(LIBS_PYTHON)) wheels $(JSON_FLAG) $(SOURCE_FLAG) --base $(BASE) $(P)

env: libs wheels-env ## build/env/patched: an environment with the wheels of all patched trees
	@$(call NOSYNC_BY,$(WHEELS_PYTHON),$(LIBS_PYTHON)) wheels $(JSON_FLAG) $(SOURCE_FLAG) --env --base $(BASE) $(P)

audit: libs ## host syncs of SCRIPT=<script.py> (ARGS=…) by call site, on a virtual device or a real one
	@PYTHONPATH=scripts $(call quoted,$(LIBS_PYTHON)) -m nosync.hostsync.audit $(call flag,$(JSON),--json -) $(AUDIT_FLAGS) $(if $(SCRIPT),$(call quoted,$(SCRIPT))) -- $(ARGS)

audit-%: libs tool-env ## host syncs of a sample step of one project by call site, on the base and the patched tree
	@$(NOSYNC) audit-project $(JSON_FLAG) --base $(BASE) $*

bench-report: tool-env ## write docs/results.md and the README's table from the committed result files
	@$(NOSYNC) bench-report $(JSON_FLAG) $(call flag,$(DRY),--dry)

BENCH = bench $(JSON_FLAG) --base $(BASE) $(1) $(if $(RUNS),--runs $(RUNS)) $(if $(GPUS),--gpus $(GPUS)) \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(call flag,$(SMOKE),--smoke) $(BENCH_FLAGS) $(if $(ONLY),--only $(ONLY))

bench-%: libs tool-env ## time, count and compare one project's workloads on both trees (ONLY=…, RUNS=n, GPUS=n, SECONDS=n, SMOKE=1)
	@$(NOSYNC) $(call BENCH,$*)

# in an environment of its own, which has SevenNet too
bench-torch-sim: torch-sim-bench-env tool-env
	@$(call NOSYNC_ON,$(TORCH_SIM_BENCH_PYTHON)) $(call BENCH,torch-sim)

static: check-env tool-env ## format, lint, types, pins, patches, workflows
	@ci/check $(call quoted,$(CHECK_PYTHON))
	@$(NOSYNC) lint

check: static test-tool ## all of that and the tests of the tool

lock: ## write requirements/*.txt anew from *.in
	@for name in uv tool export check libs wheels bench-torch-sim $(PROJECTS:%=upstream-%); do (cd requirements && uv pip compile -q --generate-hashes --no-emit-index-url \
	  --python-version 3.12 --universal $$name.in -o $$name.txt); done
