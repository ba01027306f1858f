// The loop of counted.S in a region of likwid's marker API, "loop". Usage: regions N, for N times 100,000 rounds: what
// likwid itself executes in the region is the same whatever N is, and drops out of a difference. The region "first" has
// what likwid and the dynamic linker do only once.
#include <likwid-marker.h>
#include <stdlib.h>

enum { ROUNDS = 100000 };

static long data[8];

// Five instructions a round, of which one loads, one stores and one branches.
static void run(int rounds) {
  long value;
  __asm__ volatile(
      "1: mov (%2), %1\n"
      "   inc %1\n"
      "   mov %1, 8(%2)\n"
      "   dec %0\n"
      "   jnz 1b\n"
      : "+r"(rounds), "=&r"(value)
      : "r"(data)
      : "cc", "memory");
}

int main(int argc, char** argv) {
  const int rounds = argc == 2 ? atoi(argv[1]) * ROUNDS : 0;
  if (rounds <= 0) return 2;
  LIKWID_MARKER_INIT;
  LIKWID_MARKER_REGISTER("first");
  LIKWID_MARKER_REGISTER("loop");
  LIKWID_MARKER_START("first");
  LIKWID_MARKER_STOP("first");
  LIKWID_MARKER_START("loop");
  run(rounds);
  LIKWID_MARKER_STOP("loop");
  LIKWID_MARKER_CLOSE;
  return 0;
}
