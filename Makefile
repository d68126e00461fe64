# SPDX-License-Identifier: Apache-2.0
#
# The usual ways in, in front of CMake and Ninja. `make help` lists them.

PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc)

.DEFAULT_GOAL := all
.PHONY: all command deps deps-test demo demo-llm tour test test-engines test-upgrade check model bench study study-sparsity study-staleness study-loco study-sparse-rl study-sparse-frontier figures fuzz soak abi wheel deb docs install format clean help

all: ## build; the command is left at build/weft
	@cmake --preset release > /dev/null
	@cmake --build build --parallel $(JOBS)

command: ## build the command alone, without tests
	@cmake --preset release > /dev/null
	@cmake --build build --parallel $(JOBS) --target weft

deps: ## install the Debian packages that a build needs and that are missing (packages.txt)
	@scripts/deps.sh

deps-test: ## the same, and those that only tests need (packages-test.txt)
	@scripts/deps.sh test

demo: deps ## a policy learns while its workers follow; ends with a report, weft-demo.html
	@$(MAKE) --no-print-directory command
	@build/weft demo

demo-llm: deps ## a language model learns by TRL while a live vLLM server follows; OPTIONS='--steps 5' and others; gets 2.7 GB at first
	@$(MAKE) --no-print-directory all
	@scripts/demo_llm.sh $(OPTIONS)

tour: deps ## a short tour of patches and PULSESync on checkpoints that it makes itself
	@$(MAKE) --no-print-directory command
	@scripts/tour.sh

test: deps-test ## everything: release, ASan+UBSan and TSan builds with their tests, and a build by clang
	@scripts/venv.sh
	@scripts/torch.sh
	@scripts/test.sh

test-engines: deps-test ## real inference engines and trainers follow a store (tests/engines); a first time installs 6 GB
	@$(MAKE) --no-print-directory all
	@scripts/test-engines.sh

check: all ## in about a minute: the tests of the library on the release build, some cases of each sweep
	@WEFT_TEST_STRIDE=5 ctest --test-dir build --output-on-failure --parallel $$((3 * $(JOBS))) \
	    --label-regex '^(unit|fuzz)$$' --label-exclude slow

model: ## spin checks the models of the protocol (doc/model) whole, in minutes; with defects they must break
	@scripts/model.sh

bench: all ## this machine against its limits, in one table
	@build/weft bench

study: all ## a real language model: the tables and charts of it in doc/RESULTS.md, about an hour, with build/engines; QUICK=1: a part, printed only
	@scripts/study.sh $(if $(QUICK),--quick)

study-sparsity: all ## the tables of sparsity in doc/RESULTS.md; QUICK=1: a part, printed only
	@if [ -n "$(QUICK)" ]; then /usr/bin/python3 -B bench/sparsity.py build/weft build/sparsity-quick --quick; \
	else /usr/bin/python3 -B bench/sparsity.py build/weft build/sparsity --document doc/RESULTS.md; fi

study-staleness: all ## reward against delay, in doc/RESULTS.md, about half an hour; QUICK=1: a part, printed only
	@if [ -n "$(QUICK)" ]; then /usr/bin/python3 -B bench/staleness.py build/weft build/staleness-quick --quick; \
	else /usr/bin/python3 -B bench/staleness.py build/weft build/staleness --document doc/RESULTS.md; fi

study-loco: all ## the tables of several trainers in doc/RESULTS.md, some hours; QUICK=1: a part, printed only
	@for part in "" --grid --overlap; do \
	    if [ -n "$(QUICK)" ]; then /usr/bin/python3 -B bench/loco.py build/weft build/loco-quick $$part --quick; \
	    else /usr/bin/python3 -B bench/loco.py build/weft build/loco $$part --resume --document doc/RESULTS.md; fi || exit; \
	done

study-sparse-rl: all ## learning under compressed caches, in doc/RESULTS.md, about an hour and a half; QUICK=1: a part, printed only
	@if [ -n "$(QUICK)" ]; then /usr/bin/python3 -B bench/sparse_rl.py build/weft build/sparse-rl-quick --quick; \
	else /usr/bin/python3 -B bench/sparse_rl.py build/weft build/sparse-rl --resume --document doc/RESULTS.md; fi
study-sparse-frontier: all ## success and speed by bytes of compressed caches, there too: what the table of runs lacks; QUICK=1 again
	@if [ -n "$(QUICK)" ]; then /usr/bin/python3 -B bench/sparse_frontier.py build/weft build/sparse-frontier-quick --quick; \
	else /usr/bin/python3 -B bench/sparse_frontier.py build/weft build/sparse-frontier --resume --document doc/RESULTS.md; fi

figures: all ## does every command that stands beside a figure still run? Each in a short form, some minutes in all
	@scripts/check_figures.py

fuzz: ## each fuzz target for FUZZ_SECONDS (default 60)
	@scripts/fuzz.sh $(FUZZ_SECONDS)

soak: all ## the long tests, such as 10,000 kills and 10,000 pauses of processes around a store
	@scripts/venv.sh
	@scripts/soak.sh

test-upgrade: all ## the command of the last release beside this one, both ways; builds it from the git history first
	@scripts/test-upgrade.sh

abi: deps-test ## what changed in the binary interface of libweft since the last release, by abidiff
	@scripts/abi.sh

wheel: ## the Python package as a wheel with library and command, in build/wheel
	@scripts/wheel.sh

deb: all ## a Debian package with command, library, headers, units, completions and man pages, in build/deb
	@scripts/deb.sh

docs: all ## the documents of the Python package, with a reference from its docstrings, in build/docs
	@scripts/docs.sh

install: all ## headers, libraries, weft.pc, the command and the Python package, under PREFIX (and DESTDIR)
	@cmake --install build --prefix $(PREFIX)

format: ## lay out all C files by .clang-format
	@git ls-files --cached --others --exclude-standard '*.c' '*.h' | xargs clang-format -i

clean: ## remove build/
	@rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24
