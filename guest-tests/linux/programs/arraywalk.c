// Reads and writes every element of one array, over and over, and prints where the array lies.
// Usage: arraywalk PASSES. walk() touches no other memory.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ELEMENTS (1u << 18)

static uint64_t array[ELEMENTS];

__attribute__((noinline)) void walk(uint64_t *begin, uint64_t *end) {
  __asm__ volatile("1: mov (%0), %%rax\n\t"
                   "   add $1, %%rax\n\t"
                   "   mov %%rax, (%0)\n\t"
                   "   add $8, %0\n\t"
                   "   cmp %1, %0\n\t"
                   "   jb 1b\n\t"
                   : "+r"(begin)
                   : "r"(end)
                   : "rax", "cc", "memory");
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: arraywalk PASSES\n");
    return 2;
  }
  printf("array %#lx %#lx\n", (unsigned long)array, (unsigned long)(array + ELEMENTS));
  fflush(stdout);
  for (long pass = strtol(argv[1], NULL, 10); pass > 0; --pass) walk(array, array + ELEMENTS);
  return 0;
}
