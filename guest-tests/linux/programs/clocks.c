// Two threads on two CPUs hand a stamp of CLOCK_MONOTONIC to each other and back, for so many seconds.
//
//   clocks SECONDS     prints "HAND_OVERS BACKWARD": how often the stamp went over, and how often it was later than the
//                      receiver's own clock
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// Odd: the second thread's turn.
static _Atomic uint64_t turn;
static _Atomic int over;
static uint64_t stamp, end, backward;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void* take_turns(void* of) {
  const uint64_t mine = (uint64_t)(uintptr_t)of;
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(mine, &cpu);
  if (sched_setaffinity(0, sizeof cpu, &cpu) != 0) {
    perror("sched_setaffinity");
    exit(1);
  }
  while (!over) {
    const uint64_t current = turn;
    if (current % 2 != mine) continue;
    const uint64_t time = now();
    backward += time < stamp;
    stamp = time;
    if (time > end) over = 1;
    turn = current + 1;
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: clocks SECONDS\n");
    return 2;
  }
  pthread_t second;
  end = now() + strtoull(argv[1], 0, 10) * 1000000000;
  if (pthread_create(&second, 0, take_turns, (void*)1) != 0) return 1;
  take_turns(0);
  pthread_join(second, 0);
  printf("%lu %lu\n", (unsigned long)turn, (unsigned long)backward);
  return 0;
}
