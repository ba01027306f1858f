// What profile_soft_test.py profiles: each function has most of one thing, and nothing else has.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN __attribute__((noinline, noclone))

// Cycles: the same work, four times as often as in cold_work(). profile_soft_test.py gives it another name.
OWN uint64_t hot_work(uint64_t rounds) {
  uint64_t sum = 1;
  for (uint64_t i = 0; i < rounds; i++) {
    sum = sum * 3 + i;
    sum ^= sum >> 7;
  }
  return sum;
}

OWN uint64_t cold_work(uint64_t rounds) {
  uint64_t sum = 1;
  for (uint64_t i = 0; i < rounds; i++) {
    sum = sum * 3 + i;
    sum ^= sum >> 7;
  }
  return sum;
}

// Loads from a line that is in the L1 all the time.
OWN uint64_t near_loads(const uint64_t* values, uint64_t rounds) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < rounds; i++) sum += values[i & 7];
  return sum;
}

// Loads from lines that no cache has yet: each depends on the one before, and each page is another.
OWN uint64_t far_loads(const uint64_t* values, uint64_t rounds, uint64_t size) {
  uint64_t at = 0;
  for (uint64_t i = 0; i < rounds; i++) at = (at + 520 + values[at]) % size;
  return at;
}

// A branch on random bits: half of it is mispredicted.
OWN uint64_t hard_branch(uint64_t rounds) {
  uint64_t bits = 88172645463325252ULL, count = 0;
  for (uint64_t i = 0; i < rounds; i++) {
    bits ^= bits << 13;
    bits ^= bits >> 7;
    bits ^= bits << 17;
    if (bits & 1) {
      count += 3;
      __asm__ volatile("");
    }
  }
  return count;
}

int main(void) {
  const uint64_t size = 1 << 20;
  uint64_t* const values = calloc(size, sizeof *values);
  if (values == NULL) return 1;
  const uint64_t sum = hot_work(400000) + cold_work(100000) + near_loads(values, 100000) +
                       far_loads(values, 60000, size) + hard_branch(40000);
  printf("%llu\n", (unsigned long long)sum);
  return 0;
}
