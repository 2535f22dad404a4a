# Everything a developer or CI runs. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# The servers are found here whatever CARGO_TARGET_DIR says; root's clone, if it is private, has
# them elsewhere, and a link.
export PGSLUICE_SERVERS = $(realpath build/servers)

# What a user has set for libpq, and the language of its messages, must decide nothing here.
unexport $(filter-out PG_% PGSLUICE_%,$(filter PG%,$(.VARIABLES))) LANGUAGE
export LC_ALL = C.UTF-8

.PHONY: help need servers check test reference dist demo demo-cluster bench soak

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

need:
	@scripts/need

servers: need ## fetch the PostgreSQL servers that tests and demo run on
	@scripts/servers

check: need ## formatting, lints with warnings denied, the rules of scripts/tidy, stale docs
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	python3 scripts/tidy_test.py 2>&1 | tail -n 3
	python3 scripts/need_test.py 2>&1 | tail -n 3
	python3 scripts/own_suites_test.py 2>&1 | tail -n 3
	python3 scripts/in_memory_test.py 2>&1 | tail -n 3
	scripts/tidy
	scripts/promises --check
	cargo test --quiet -p pgsluice --bin pgsluice reference
	[ ! -f README.md ] || cargo run --quiet -p pgsluice-bench -- readme --check

reference: need ## write docs/reference.md, docs/promises.md and the tables of docs/guide/coming-from.md again
	UPDATE_REFERENCE=1 cargo test --quiet -p pgsluice --bin pgsluice reference
	scripts/promises

test: servers ## do the set-up and run every test
	@# The extension first: the loader's tests take it where they find it. Both run, whatever the first says.
	@# Root's servers run as another user, who reads what the tests make. Many tests wait for servers to start
	@# and stop, so there are twice as many at a time as cores.
	umask 022; failed=0; scripts/in-memory scripts/test-extension || failed=1; \
	RUST_TEST_THREADS=$$((2 * $$(nproc))) scripts/in-memory cargo test --workspace --no-fail-fast || failed=1; exit $$failed

dist: servers ## make what can be installed, in build/dist: archive, Debian packages, checksums
	@scripts/dist

demo: ## start a server, load a million votes, ask two questions, stop (ROWS=n for more)
	@scripts/demo

demo-cluster: ## start a coordinator and four nodes, load a million order lines, ask all, stop (ROWS=n, NODES=n)
	@scripts/demo-cluster

bench: servers ## the benchmark in a quarter of an hour; the report lands in bench/runs
	umask 022; pg_bin=$$(bench/prepare); cargo run --release --quiet -p pgsluice-bench -- all --quick --pg-bin "$$pg_bin"

soak: servers ## the long form of the random tests: a minute for each fuzz target, slow tests too
	scripts/fuzz 60
	scripts/real-files
	scripts/pollock
	PGSLUICE_SOAK=10 PGSLUICE_FUZZ_SECONDS=60 PGSLUICE_CASES=200000 cargo test --workspace -- --include-ignored
	PGSLUICE_SOAK=10 scripts/test-extension
	scripts/bundled
	scripts/dist
	scripts/dist-test
	for major in 15 17 18 19; do scripts/own-suites $$major || exit 1; done
