# `make help` lists the targets.
GO ?= go
FUZZTIME ?= 10000x
TORTURETIME ?= 10m
SIMSEED ?= 1000

# A program with the race detector waits a second at its end, for races of what still runs. Tests
# have hundreds of such programs: each waits as long as integration's daemons do.
export GORACE ?= atexit_sleep_ms=50

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: verbs ## the programs, into bin/
	$(GO) build -o bin/ ./cmd/vrnic ./cmd/vrnic-bench

# vrnic carries them for `vrnic exec`; built without a C compiler it carries their source only.
.PHONY: verbs
verbs: ## libibverbs and librdmacm for verbs programs, in C, into verbs/build/
	@if command -v $(firstword $(CC)) >/dev/null; then $(MAKE) -s -C verbs && \
	if command -v musl-gcc >/dev/null; then $(MAKE) -s -C verbs musl; fi; \
	else echo "no C compiler ($(CC)): vrnic exec will want one" >&2; fi

.PHONY: demo
demo: ## no root, no set-up: two processes move data through a virtual RNIC and verify it
	$(GO) run ./cmd/vrnic demo

.PHONY: test
test: verbs ## the tests, quickly: no linters, no race detector
	$(GO) test ./...

# What check runs, in this order.
CHECKS := format vet lint tidy race allocs sim fuzz demo

.PHONY: check
check: ## what CI checks: before every commit; at the end, how long each part took
	@took=; for part in $(CHECKS); do began=$$(date +%s); \
	$(MAKE) --no-print-directory $$part || exit; \
	took="$$took $$part $$(($$(date +%s) - began)) s,"; done; echo "check:$${took%,}"

.PHONY: format
format: ## gofmt has nothing to change
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...

.PHONY: lint
lint: ## linters, run with `go run`
	.ci/lint

.PHONY: tidy
tidy: ## go.mod and go.sum are as `go mod tidy` would leave them
	$(GO) mod tidy -diff

# Packages in which no goroutine runs but that of the test: there the race detector finds nothing,
# in ten times the time. internal/archtest has the rule.
ALONE := ./internal/archtest ./iwarp ./ipoib ./netstack/port/impair \
	./netstack/port/impair/ideal ./netstack/sctp ./netstack/sctp/internal/congestion \
	./netstack/sctp/internal/rack ./netstack/tcp/recovery ./roce ./roce/cm ./roce/dcqcn ./roce/mad \
	./roce/packet ./roce/udp ./roi ./sctpddp ./sctpddp/sctpddptest ./shm/abi ./shm/rpc \
	./shm/ring/search ./vnic/record

# It runs `go test`, and keeps how long each test took.
SUM := $(GO) run gotest.tools/gotestsum@v1.13.0
SUMMED := $(SUM) --format pkgname-and-test-fails --hide-summary skipped

.PHONY: race
# `make vet` has vetted all of it. With the detector gVisor and the rest would be, once more.
race: verbs ## the tests under the race detector, in random order, and which took longest
	@work=$$(mktemp -d) && touch $$work/skips && chmod 755 $$work && chmod 666 $$work/skips || exit; \
	export VRNIC_TEST_SKIPS=$$work/skips VRNIC_TEST_LIBS=$(CURDIR)/verbs/build; status=0; \
	$(GO) list $(ALONE) >$$work/alone && $(SUMMED) --jsonfile-timing-events $$work/1 -- \
	-vet=off -shuffle=on $(ALONE) || status=1; \
	$(SUMMED) --jsonfile-timing-events $$work/2 -- -vet=off -race -shuffle=on -timeout 30m \
	$$($(GO) list ./... | grep -vxFf $$work/alone) || status=1; \
	echo "the slowest tests:"; cat $$work/1 $$work/2 | $(SUM) tool slowest --threshold 8s; \
	sort -u $$work/skips | sed 's/^/skipped: /'; rm -rf $$work; exit $$status

.PHONY: allocs
# The race detector allocates by itself, so these tests cannot be under it; nor can TestNeighbour,
# in which gVisor has a race of its own. Packages that have none need no build.
allocs: ## nothing is allocated for a message
	$(GO) test -count=1 -run 'Allocs|^TestNeighbour$$' $$(grep -rlE --include='*_test.go' \
	'^func Test(\w*Allocs\w*|Neighbour)\(' vnic netstack roce internal/stacknet | \
	xargs -n 1 dirname | sort -u | sed 's,^,./,')

.PHONY: sim
# Faster than `race` runs it, by far: the clock is fake, and there is one processor.
sim: ## two RNICs in simulated time: a million steps of random programs
	$(GO) test -count=1 ./integration/sim -total 1000000

.PHONY: simulate
simulate: ## the same, ten million steps on other seeds: SIMSEED is the first
	$(GO) test -count=1 -v -timeout 60m ./integration/sim -total 10000000 -seed $(SIMSEED)

.PHONY: fuzz
fuzz: verbs ## each fuzz target for FUZZTIME (10000x inputs; or a duration, 10m)
	VRNIC_TEST_LIBS=$(CURDIR)/verbs/build .ci/fuzz $(FUZZTIME)

# The engines and the rings, which have code of their own for each architecture, or rest on the
# order of memory that amd64 gives for free.
ARM64_TESTS ?= ./iwarp/... ./sctpddp/... ./roi/... ./roce/... ./netstack/sctp/... \
	./netstack/tcp/recovery ./shm/abi ./shm/rpc ./shm/ring ./internal/crc32c ./internal/bulk \
	./internal/prefetch
# The C libraries and their programs are of Debian's cross compiler; the tests themselves, which are
# the daemon, are of this machine, and compiled as for Debian packages, once for both.
ARM64_C := CGO_ENABLED=0 CC=aarch64-linux-gnu-gcc \
	VRNIC_TEST_EMULATOR='qemu-aarch64-static -L /usr/aarch64-linux-gnu'
ARM64_SMOKE := ^Test(MemoryRegions|Windows|HostileRings|CompletionEvents|Death|Threads|Rings|$\
	Litmus|LitmusPair)$$

.PHONY: test-arm64
# QEMU emulates the processor, not the kernel: packages that ask that for more are not among them,
# and tests of the C libraries that do so are skipped.
test-arm64: ## the protocol engines, the rings and the C libraries as arm64, under qemu-user-static
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -short -exec qemu-aarch64-static $(ARM64_TESTS)
	$(ARM64_C) $(GO) test -trimpath -count=1 ./verbs/sessiontest ./verbs/ringtest ./verbs/pairtest

.PHONY: test-arm64-smoke
test-arm64-smoke: ## a part of them, in half a minute
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -short -exec qemu-aarch64-static \
	./internal/crc32c ./internal/bulk ./internal/prefetch ./shm/abi ./shm/rpc ./roce/packet \
	./netstack/tcp/recovery
	$(ARM64_C) $(GO) test -trimpath -count=1 -run '$(ARM64_SMOKE)' ./verbs/sessiontest \
	./verbs/ringtest

# What `make upgrade` takes for the older release: the last commit that speaks ABI 1.0.
OLD ?= 18330c4~1

.PHONY: upgrade
upgrade: verbs ## programs of the commit OLD with the daemon of this one, and the other way round
	@old=$$(mktemp -d) && trap 'rm -rf "$$old"' EXIT && git archive $(OLD) | tar -x -C "$$old" && \
	$(MAKE) -s -C "$$old" build && VRNIC_TEST_OLD="$$old/bin/vrnic" \
	$(GO) test -count=1 -v -timeout 10m -run '^TestUpgrade$$' ./integration

.PHONY: soak
soak: ## 100,000 connections come and go, and nothing may grow
	VRNIC_SOAK_CYCLES=100000 \
	$(GO) test -count=1 -v -timeout 60m -run '^TestCycles$$' ./integration/soak

# How long `make lab-soak` takes, and its seed; a round by itself, again and again: LABROUND.
LABTIME ?= 1h
LABSEED ?= 1
LABROUND ?=

.PHONY: lab-soak
lab-soak: verbs ## programs, faults, bad networks, kills, adversaries and --check, for LABTIME (1h)
	VRNIC_LAB_SOAK=$(LABTIME) VRNIC_LAB_SEED=$(LABSEED) VRNIC_LAB_ROUND=$(LABROUND) \
	$(GO) test -count=1 -v -timeout 0 -run '^TestLabSoak$$' ./integration/verbs

.PHONY: torture
torture: ## raw peers over TCP and SCTP that lie, against a daemon, for TORTURETIME (10m) each
	VRNIC_TORTURE=$(TORTURETIME) \
	$(GO) test -race -count=1 -v -timeout 0 -run '^TestRaw(SCTP)?Torture$$' ./integration

# Programs of RDMA whose runs are worth the time: with a fresh daemon for each test, on libraries of
# one tool after another.
SANITIZERS ?= address thread valgrind
SANITIZE_TESTS ?= DevicePrograms|Rping|RpingIPv6|RpingDaemonKilled|CMPrograms|Perftest|Fabric|$\
	Fio|Traps|C|DaemonKilled|HostileRings|RoCEPingpong|RoCEStates|RoCEData|$\
	RoCERoute|RsocketDatagrams
# valgrind is ten times as slow.
VALGRIND_TESTS ?= Rping|RpingIPv6|CMPrograms|Fabric|Traps|HostileRings

.PHONY: sanitize
# AddressSanitizer with UndefinedBehaviorSanitizer, ThreadSanitizer, valgrind.
sanitize: ## the C libraries under sanitizers: their tests, and programs
	$(MAKE) -s -C verbs asan tsan
	VRNIC_TEST_CFLAGS=-fsanitize=address,undefined VRNIC_TEST_LIBS=$(CURDIR)/verbs/build/asan \
	$(GO) test -count=1 -skip /setuid ./verbs/sessiontest ./verbs/pairtest
	TSAN_OPTIONS=suppressions=$(CURDIR)/integration/verbs/testdata/tsan.supp \
	VRNIC_TEST_CFLAGS='-fsanitize=thread -Wno-tsan' VRNIC_TEST_LIBS=$(CURDIR)/verbs/build/tsan \
	$(GO) test -count=1 ./verbs/sessiontest ./verbs/pairtest
	@for s in $(SANITIZERS); do echo "sanitize: programs under $$s"; tests='$(SANITIZE_TESTS)'; \
	case $$s in address) libs=$(CURDIR)/verbs/build/asan;; thread) libs=$(CURDIR)/verbs/build/tsan;; \
	*) libs=; tests='$(VALGRIND_TESTS)';; esac; VRNIC_TEST_SANITIZE=$$s VRNIC_TEST_LIBS=$$libs \
	$(GO) test -count=1 -timeout 30m -run "^Test($$tests)\$$" ./integration/verbs || exit 1; done

# Of `make direct`: the first seed, how many there are, how many programs die, and how often memory
# is taken back.
DIRECTSEED ?= 1000
DIRECTSEEDS ?= 4000
DIRECTKILLS ?= 10000
DIRECTREVOCATIONS ?= 1000000

.PHONY: direct
direct: ## the direct path: random programs, revocations, and programs that die
	$(GO) test -count=1 -v -timeout 90m ./integration/verbs \
	-run '^TestDirect(Random|Revoked|Marks|Stopped|Kills|DaemonMarks|DaemonKilled)$$' -allmarks \
	-seed $(DIRECTSEED) -seeds $(DIRECTSEEDS) -kills $(DIRECTKILLS) \
	-revocations $(DIRECTREVOCATIONS)

.PHONY: impaired
impaired: ## SCTP over a network that loses, reorders and doubles: a million messages
	$(GO) test ./netstack/sctp -count=1 -v -timeout 30m -run Impaired -messages 1000000 -seeds 1000

# Tests of the programs, for a part of them: make verbs-programs PROGRAMS='TestRoCEPerftest$$/one'
PROGRAMS ?= .

.PHONY: verbs-programs
# What comes of each program is kept, and the tables of docs/verbs.md are made of that.
verbs-programs: verbs ## Debian's verbs programs on vrnic's libraries, in all their ways
	VRNIC_TEST_VERBS=all $(GO) test -count=1 -v -timeout 120m -run '$(PROGRAMS)' ./integration/verbs \
	-record; status=$$?; \
	VRNIC_TEST_VERBS=all $(GO) test -count=1 -run '$(PROGRAMS)' ./verbs/heaptest || status=1; \
	$(GO) test -count=1 -run '^TestDocs$$' ./integration/verbs -update; exit $$status

.PHONY: containers
containers: verbs ## verbs programs in containers of podman and docker (as root)
	VRNIC_TEST_CONTAINERS=all VRNIC_TEST_REQUIRE="root podman docker" \
	$(GO) test -count=1 -v -timeout 30m ./integration/containers

.PHONY: bench
bench: ## throughput and latency of embedded devices
	$(GO) run ./cmd/vrnic-bench

.PHONY: scale
scale: ## what 10,000 QPs and 1,000,000 registrations of one device cost
	@mkdir -p bin
	$(GO) build -o bin/ ./cmd/vrnic ./cmd/vrnic-bench
	bin/vrnic-bench scale

# Flags of `vrnic-bench badnet`, for some networks only: make badnet BADNET='--loss 1 --rtt 10ms'
BADNET ?=

.PHONY: badnet
# A higher priority, for what else the machine does.
badnet: ## goodput over bad networks, beside Linux TCP, in 20 minutes (root; BADNET='--loss 1 ...')
	@mkdir -p bin
	$(GO) build -o bin/ ./cmd/vrnic ./cmd/vrnic-bench
	nice -n -15 bin/vrnic-bench badnet $(BADNET)

.PHONY: interop
# It builds siw and rxe and boots them in QEMU, without root.
interop: ## against Linux siw, rxe and SCTP: the whole matrix of docs/interop.md
	VRNIC_TEST_INTEROP=1 $(GO) test -count=1 -v -timeout 120m -run '^Test(Siw|Rxe)' ./integration
	VRNIC_TEST_INTEROP=1 $(GO) test -count=1 -v -timeout 30m -run '^Test(Siw|Rxe)' ./integration/verbs
	$(MAKE) interop-sctp

.PHONY: interop-sctp
interop-sctp: ## against Linux's SCTP in the same guest, in two minutes
	VRNIC_TEST_INTEROP=1 $(GO) test -count=1 -v -timeout 10m -run '^TestLinux' ./integration/sctppeer

.PHONY: interop-smoke
interop-smoke: ## the same in a few minutes: every operation and fault once
	VRNIC_TEST_INTEROP=smoke $(GO) test -count=1 -v -timeout 15m -run '^Test(Siw|Rxe)' ./integration
	VRNIC_TEST_INTEROP=smoke $(GO) test -count=1 -v -timeout 5m -run '^TestSiw' ./integration/verbs
	VRNIC_TEST_INTEROP=smoke \
	$(GO) test -count=1 -v -timeout 5m -run '^TestLinux' ./integration/sctppeer

# Architectures of `make deb` and `make image`.
DEB_ARCHS ?= amd64 arm64

.PHONY: deb
deb: ## Debian packages of what is committed, into bin/, looked over by lintian
	@mkdir -p bin
	@for arch in $(DEB_ARCHS); do \
	deb=$$(packaging/debian/build bin $$arch) && lintian --fail-on error,warning $$deb && \
	echo $$deb || exit; done

.PHONY: image
image: ## container images of what is committed, as OCI layouts, into bin/
	@mkdir -p bin
	@for arch in $(DEB_ARCHS); do packaging/image/build bin $$arch || exit; done

.PHONY: reproducible
# The second time nothing of what the first has compiled is taken.
reproducible: ## packages and images that are built twice, in two folders, are the same octets
	@a=$$(mktemp -d) && b=$$(mktemp -d) && trap 'rm -rf "$$a" "$$b" "$$b.cache"' EXIT && \
	for arch in $(DEB_ARCHS); do for kind in debian image; do \
	packaging/$$kind/build "$$a" $$arch >/dev/null && \
	GOCACHE="$$b.cache" packaging/$$kind/build "$$b" $$arch >/dev/null || exit; \
	done; done; diff -r "$$a" "$$b" && (cd "$$a" && sha256sum *)

.PHONY: deps
deps: ## Debian packages for check, interop and verbs-programs (as root)
	.ci/deps programs

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
	$(MAKE) -s -C verbs clean
