# Targets are described in docs/ and by `make help`.
#
#   BUILD=dir     where everything is built (build)
#   CC=gcc|clang  the compiler
#   TESTS="..."   only these files, for test, test-hup, test-valgrind, asan
#   JOBS=2        test files at once
#   DESTDIR=dir   for install

ifeq ($(origin CC),default)
CC = gcc
endif

BUILD = build
JOBS = 2
TESTS =
FUZZ_SECONDS = 60
CHAOS_SECONDS = 120
CHAOS_SEED =

SOURCES = $(wildcard ngx_aibrix_module/*.[ch] ngx_aibrix_module/core/*.[ch] \
            ngx_aibrix_module/core/strategies/*.[ch] sim/*.[ch])
MODULES = $(BUILD)/ngx_http_aibrix_module.so \
          $(BUILD)/ngx_http_engine_sim_module.so

CORE = $(BUILD)/core
CORE_SOURCES = $(wildcard ngx_aibrix_module/core/*.c \
                 ngx_aibrix_module/core/strategies/*.c sim/engine*.c)
CORE_OBJECTS = $(CORE_SOURCES:%.c=$(CORE)/%.o)
CORE_CFLAGS = -std=gnu11 -O2 -g -Wall -Wextra -Werror \
              -I. -Ingx_aibrix_module -Ingx_aibrix_module/core -Isim -It/core
CORE_LIBS = -Wl,--as-needed -lcmocka -ljson-c -lm -lpthread
SANITIZE =

REPLAY_OBJECTS = $(patsubst %.c,$(CORE)/%.o,$(wildcard sim/replay*.c))

UNIT_TESTS = $(patsubst t/core/%.c,$(CORE)/%,$(wildcard t/core/test_*.c))
SUITES = $(sort $(wildcard t/*.t))
FUZZERS = $(sort $(patsubst t/fuzz/%.c,%,$(wildcard t/fuzz/fuzz_*.c)))

PAGE_HEADER = ngx_aibrix_module/ngx_http_aibrix_page.h

RUN_TESTS = BUILD=$(abspath $(BUILD)) JOBS=$(JOBS) scripts/run-tests.sh

.PHONY: all chaos check clean core demo deps replay fuzz help install modules test test-all \
        test-core test-hup test-suites test-valgrind uninstall asan study \
        study-quick FORCE \
        page screenshots test-observe
.DELETE_ON_ERROR:
.SECONDARY: $(CORE_OBJECTS) $(REPLAY_OBJECTS)

all: $(MODULES) $(BUILD)/replay

help:
	@echo 'make deps           Debian packages for building and testing'
	@echo 'make                both modules for the installed nginx, build/replay'
	@echo 'make check          the installed nginx loads them'
	@echo 'make core           objects of the core and its unit tests'
	@echo 'make demo           two simulated engines behind the module'
	@echo 'make test           unit tests and Test::Nginx suites'
	@echo 'make test-core      unit tests only'
	@echo 'make test-suites    Test::Nginx suites only'
	@echo 'make test-hup       suites with a reload before each block'
	@echo 'make test-valgrind  suites under valgrind'
	@echo 'make test-observe   the live page in Chromium, Prometheus on the demo'
	@echo 'make screenshots    docs/img, from both of these'
	@echo 'make test-all       this Debian, trixie and sid'
	@echo 'make asan           unit tests and suites with ASAN and UBSAN'
	@echo 'make fuzz           each fuzzer for FUZZ_SECONDS=60'
	@echo 'make chaos          everything fails at random for CHAOS_SECONDS=120'
	@echo 'make replay         strategies against rivals in virtual time'
	@echo 'make study          the published study and ours, seven minutes'
	@echo 'make study-quick    four phases of it, half a minute'
	@echo 'make install        the module into the installed nginx'
	@echo 'make uninstall, make clean'

deps:
	@scripts/deps.sh build test

clean:
	rm -rf $(BUILD)


# The modules. nginx's own makefile knows what depends on which header; it is
# made anew when what it was made from has changed.

$(MODULES): modules
	@cmp -s $(BUILD)/nginx/$(@F) $@ \
	    || { cp $(BUILD)/nginx/$(@F) $@.new && mv $@.new $@ \
	         && echo "$@: for $$(nginx -v 2>&1), by $(CC)"; }

modules: $(BUILD)/nginx/Makefile
	@scripts/nginx-build.sh make $(BUILD)/nginx

$(BUILD)/nginx/Makefile: $(BUILD)/nginx.stamp config sim/config \
                         scripts/nginx-build.sh
	@scripts/nginx-build.sh configure $(BUILD)/nginx $(CC)

$(BUILD)/nginx.stamp: FORCE
	@scripts/stamp.sh $@ "$(CC) $$($(CC) --version 2>&1 | head -n 1)" \
	    "$$(nginx -V 2>&1)" $(SOURCES)

check: all
	@scripts/check-load.sh $(MODULES)

install: $(BUILD)/ngx_http_aibrix_module.so
	@scripts/install.sh install $<

uninstall:
	@scripts/install.sh uninstall ngx_http_aibrix_module.so


demo: deps
	@$(MAKE) --no-print-directory all
	@scripts/demo.sh $(BUILD)


# The routing study; STUDY="--repeat 3 ..." are options of study/run.

STUDY =

study-quick: QUICK = --quick --speed 20

study study-quick: deps
	@scripts/deps.sh study
	@$(MAKE) --no-print-directory all
	@study/run --build $(BUILD) $(QUICK) $(STUDY)


# The replay tool: engines in virtual time under the module's own core.

$(BUILD)/replay: $(REPLAY_OBJECTS) $(CORE_OBJECTS)
	@echo $(CC) $@
	@$(CC) $(CORE_CFLAGS) -o $@ $^ -lm

replay: deps
	@$(MAKE) --no-print-directory $(BUILD)/replay
	@REPLAY=$(BUILD)/replay sim/replay-report.sh


# The core without nginx, and its unit tests.

core: $(UNIT_TESTS)

$(CORE)/stamp: FORCE
	@scripts/stamp.sh $@ "$$($(CC) --version 2>&1 | head -n 1)" \
	    "$(CORE_CFLAGS) $(SANITIZE)" $(CORE_SOURCES)

$(CORE)/%.o: %.c $(CORE)/stamp
	@mkdir -p $(@D)
	@echo $(CC) $@
	@$(CC) $(CORE_CFLAGS) $(SANITIZE) -MMD -MP -c -o $@ $<

$(CORE)/test_%: t/core/test_%.c $(CORE_OBJECTS) $(CORE)/stamp
	@echo $(CC) $@
	@$(CC) $(CORE_CFLAGS) $(SANITIZE) -MMD -MP -MF $@.d -MT $@ -o $@ \
	    $< $(CORE_OBJECTS) $(CORE_LIBS)

-include $(CORE_OBJECTS:.o=.d) $(REPLAY_OBJECTS:.o=.d) $(UNIT_TESTS:=.d)


# Tests. Each of these is one run of prove with one closing line. The nested
# make reads the tree again when deps has brought what was missing.

test: deps
	@scripts/deps.sh study
	@$(MAKE) --no-print-directory all core
	@$(RUN_TESTS) plain $(or $(TESTS),$(UNIT_TESTS) $(SUITES))

test-core: core
	@$(RUN_TESTS) plain $(UNIT_TESTS)

test-suites: all
	@$(RUN_TESTS) plain $(or $(TESTS),$(SUITES))

test-hup: deps
	@$(MAKE) --no-print-directory all
	@$(RUN_TESTS) hup $(or $(TESTS),$(SUITES))

test-valgrind: deps
	@scripts/deps.sh valgrind
	@$(MAKE) --no-print-directory all
	@$(RUN_TESTS) valgrind $(or $(TESTS),$(SUITES))

# These need a browser and a Prometheus: half a gigabyte of packages that no
# other test wants, on one Debian, since neither speaks to nginx's versions.
test-observe: deps
	@scripts/deps.sh observe
	@$(MAKE) --no-print-directory all
	@$(RUN_TESTS) plain $(sort $(wildcard t/observe/*.t))

screenshots: deps
	@scripts/deps.sh observe study
	@$(MAKE) --no-print-directory all
	@BUILD=$(abspath $(BUILD)) scripts/ns.sh scripts/screenshots.pl docs/img

page:
	@page/embed.pl < page/index.html > $(PAGE_HEADER).new
	@mv $(PAGE_HEADER).new $(PAGE_HEADER)

test-all:
	@BUILD=$(BUILD) scripts/test-all.sh

asan: deps
	@scripts/deps.sh source
	@scripts/asan-nginx.sh
	@$(MAKE) --no-print-directory core CORE=$(BUILD)/core-asan CC=gcc \
	    SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer'
	@$(RUN_TESTS) asan $(or $(TESTS), \
	    $(UNIT_TESTS:$(CORE)/%=$(BUILD)/core-asan/%) $(SUITES))

fuzz: deps
	@scripts/deps.sh fuzz
	@FUZZ_SECONDS=$(FUZZ_SECONDS) BUILD=$(BUILD) scripts/fuzz.sh $(FUZZERS)


# What goes wrong is made from CHAOS_SEED, which is printed; see
# docs/reliability.md.

chaos: deps
	@$(MAKE) --no-print-directory all
	@CHAOS_SECONDS=$(CHAOS_SECONDS) CHAOS_SEED=$(CHAOS_SEED) \
	    AIBRIX_BUILD=$(abspath $(BUILD)) scripts/ns.sh nice -n 5 \
	    timeout $$(($(CHAOS_SECONDS) * 2 + 120)) perl t/chaos/chaos.pl
