#include <cstdio>

// Debian's libhdf5.a is compiled for programs: its code reads the variables `stderr` and `stdout` of the C library at
// an address that a shared library cannot have. The linker (--wrap) therefore gives the whole module these variables
// instead, which hold the same streams.

extern "C" {
extern FILE *__real_stderr, *__real_stdout;
FILE* __wrap_stderr = __real_stderr;
FILE* __wrap_stdout = __real_stdout;
}
