// Spends four fifths of its time in heavy() and one fifth in light(): both run the same loop, heavy() four times as
// long. Usage: split ROUNDS. The length of a round varies, so that no sampling period can fall into step with it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SPIN(iterations)                \
  do {                                  \
    uint64_t left = (iterations);       \
    uint64_t sum = 0;                   \
    __asm__ volatile(                   \
        "1: add %1, %0\n\t"             \
        "   xor $0x55, %0\n\t"          \
        "   add $3, %0\n\t"             \
        "   ror $1, %0\n\t"             \
        "   dec %1\n\t"                 \
        "   jnz 1b\n\t"                 \
        : "+r"(sum), "+r"(left)::"cc"); \
  } while (0)

__attribute__((noinline)) void heavy(uint64_t iterations) { SPIN(4 * iterations); }

__attribute__((noinline)) void light(uint64_t iterations) { SPIN(iterations); }

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: split ROUNDS\n");
    return 2;
  }
  uint32_t random = 1;
  for (long round = strtol(argv[1], NULL, 10); round > 0; --round) {
    random = random * 1664525u + 1013904223u;
    const uint64_t iterations = 20000 + (random >> 18);
    heavy(iterations);
    light(iterations);
  }
  return 0;
}
