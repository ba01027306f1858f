/* A program whose code is laid out badly: what happens rarely stands between what happens often. The compiler does not
 * know which is which. */
#include <stdio.h>
#include <stdlib.h>

static unsigned state = 1;
static unsigned next_random(void) {
  state = state * 1664525U + 1013904223U;
  return state >> 8;
}

__attribute__((noinline)) static unsigned rare(unsigned x) {
  volatile unsigned y = x;
  for (unsigned i = 0; i < 3; i++) y ^= i;
  return y;
}

/* Each condition is nearly always false. */
__attribute__((noinline)) static unsigned work(unsigned r, unsigned sum) {
  if ((r & 1023) == 7) sum += rare(sum) ^ rare(r);
  sum += r & 3;
  if ((r & 2047) == 9) sum -= rare(r);
  sum ^= r >> 3;
  if ((r & 4095) == 3) sum ^= rare(sum) + 1;
  sum += r >> 5;
  if ((r & 511) == 11) sum += rare(sum) * 3;
  return sum;
}

int main(int argc, char** argv) {
  const unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 200000;
  unsigned sum = 0;
  for (unsigned i = 0; i < rounds; i++) sum = work(next_random(), sum);
  printf("%u\n", sum);
  return 0;
}
