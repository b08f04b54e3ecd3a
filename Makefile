# reuse_sync: built like any PGXS extension
#
#   make                 build            make test   set up, build, run all tests
#   make install         install          make demo   set up, build, show it at work
#   make installcheck    test a running   make lint   compilers and static checkers
#                        installation     make bench  measure it, see test/bench
#   make dist            archive of the release
#   make package         the same, and Debian packages, tested
#
# PG_CONFIG=path chooses the server.  The scripts behind test, demo, bench and
# lint need nothing but make itself: they install what is missing, work on a
# private copy of this tree and leave it, and the server, as they were.

all:

PG_CONFIG ?= pg_config

MODULE_big = reuse_sync
EXTENSION = reuse_sync
# What 1.0 has not is in the script that leads to the next version: CREATE
# EXTENSION runs one after the other, and so updates are what is tested.
DATA = sql/reuse_sync--1.0.sql sql/reuse_sync--1.0--1.1.sql

# Found next to this file, also when it is built elsewhere ("make -f").
reuse_sync_dir := $(dir $(firstword $(MAKEFILE_LIST)))
OBJS = $(sort $(patsubst $(reuse_sync_dir)%.c,%.o,$(wildcard $(reuse_sync_dir)src/*.c)))

# The tests.  REGRESS is named, not globbed: a forgotten file must fail.
REGRESS = reuse_sync
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

# Warnings are errors; a packager with a compiler we have not seen can say
# "make WERROR=".
WERROR = -Werror

# The server's CFLAGS, and the attributes in its headers, are those of the
# compiler it was built with.  Clang is to ignore what only gcc knows.
clang_flags = $(if $(findstring clang,$(shell $(CC) --version)),\
	-Wno-ignored-optimization-argument -Wno-unknown-warning-option \
	-Wno-ignored-attributes)

# "make TEST_BUILD=1" for a library that test/guards can take apart, and
# test/crashes stop at any step, see src/testing.h.  It is for tests alone.
test_flags = $(if $(TEST_BUILD),-DREUSE_SYNC_TEST_BUILD)

# PGXS tracks no headers; the compiler writes what each object depends on.
PG_CPPFLAGS = -I$(srcdir)/src -I$(libpq_srcdir) $(test_flags)
PG_CFLAGS = -MMD -MP $(clang_flags) $(WERROR)
SHLIB_LINK_INTERNAL = $(libpq)
deps = $(OBJS:.o=.d)
EXTRA_CLEAN = $(deps) build_flags

# Bitcode is for inlining SQL-callable functions into queries.  Nothing here
# gains by that, and it asks for the very clang the server was built with.
override with_llvm = no

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifneq ($(wildcard $(PGXS)),)

include $(PGXS)

PG_PROVE_FLAGS += -I $(abspath $(srcdir))/test/lib

-include $(deps)

# Objects of a test build and of a normal one never meet in one library: what
# they were built with is in this file, and it is younger if that has changed.
$(OBJS): build_flags
build_flags: FORCE
	@echo '$(test_flags)' | cmp -s - $@ || echo '$(test_flags)' >$@
.PHONY: FORCE

# Only a build outside of the source tree lacks the folder.
$(OBJS): | $(CURDIR)/src
$(CURDIR)/src:
	$(MKDIR_P) $@

# What PGXS has under this name runs nothing and succeeds.
check: check-unsupported

else # no server to build against, or only libpq's pg_config

all install installdirs uninstall installcheck clean distclean maintainer-clean:
	@echo >&2 "$(PG_CONFIG) names no server with its development files."
	@echo >&2 "Install them (Debian: postgresql-server-dev-17, say) or give PG_CONFIG=path."
	@exit 1

.PHONY: all install installdirs uninstall installcheck clean distclean maintainer-clean
.PHONY: check
check: check-unsupported

endif

.PHONY: check-unsupported
check-unsupported:
	@echo >&2 '"make check" cannot work for an extension built outside of the server.'
	@echo >&2 'Use "make test", or "make installcheck" against a running server.'
	@exit 1

# The scripts choose a server themselves when none was given.
ifeq ($(origin PG_CONFIG),file)
script_env =
else
script_env = PG_CONFIG='$(PG_CONFIG)'
endif
# make test TESTS="test/t/001_x.pl" runs a part, PROVE_JOBS=n so many at once.
script_env += TESTS='$(TESTS)' PROVE_JOBS='$(PROVE_JOBS)' PROVE_FLAGS='$(PROVE_FLAGS)'
ifeq ($(origin CC),command line)
script_env += CC='$(CC)'
endif

# No shell stays between make and the script: a signal to make reaches it.
.PHONY: test demo bench lint dist package
test:
	@exec env $(script_env) $(reuse_sync_dir)test/run
demo:
	@exec env $(script_env) $(reuse_sync_dir)test/demo
bench:
	@exec env $(script_env) $(reuse_sync_dir)test/bench
lint:
	@exec env $(script_env) $(reuse_sync_dir)test/lint

package:
	@exec env $(script_env) $(reuse_sync_dir)test/package

dist_version = $(shell sed -n 's/^   "version": "\(.*\)",$$/\1/p' META.json)
dist:
	git archive --prefix=reuse_sync-$(dist_version)/ \
		-o reuse_sync-$(dist_version).zip HEAD
