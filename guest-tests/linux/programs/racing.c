// Four threads that race for two words: what comes out depends on where each was interrupted.
//   racing ROUNDS         prints both words
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { threads = 4, steps = 300 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t raced;
static uint64_t locked;
static long rounds;

static void* race(void* seed) {
  uint64_t x = (uint64_t)seed;
  for (long i = 0; i < rounds; ++i) {
    for (int j = 0; j < steps; ++j) {
      x = x * 6364136223846793005U + 1442695040888963407U;
      if (x >> 63) x ^= (uint64_t)i;
      raced = (raced + x) ^ x >> 7;
    }
    pthread_mutex_lock(&lock);
    locked = locked * 31 + x;
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t all[threads];
  if (argc != 2) return 2;
  rounds = atol(argv[1]);
  for (uintptr_t i = 0; i < threads; ++i)
    if (pthread_create(&all[i], NULL, race, (void*)(i + 1)) != 0) return 1;
  for (int i = 0; i < threads; ++i) pthread_join(all[i], NULL);
  printf("%" PRIx64 " %" PRIx64 "\n", raced, locked);
  return 0;
}
