// Two threads, each of which adds to a number of its own.
//   neighbours near ROUNDS     the numbers lie in one cache line
//   neighbours far ROUNDS      in two
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static volatile long numbers[64] __attribute__((aligned(64)));
static pthread_barrier_t both;
static long rounds;

static void* add(void* number) {
  volatile long* n = number;
  pthread_barrier_wait(&both);
  for (long i = 0; i < rounds; ++i) *n = *n + 1;
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t other;
  if (argc != 3) return 2;
  rounds = atol(argv[2]);
  const int distance = strcmp(argv[1], "near") == 0 ? 1 : 32;
  if (pthread_barrier_init(&both, NULL, 2) != 0) return 1;
  if (pthread_create(&other, NULL, add, (void*)&numbers[0]) != 0) return 1;
  add((void*)&numbers[distance]);
  if (pthread_join(other, NULL) != 0) return 1;
  return numbers[0] != rounds || numbers[distance] != rounds;
}
