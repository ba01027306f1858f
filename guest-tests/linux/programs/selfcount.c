// Counts itself as libraries do: by perf_event_open, overflow signals and RDPMC. Prints what came of it, a line each:
//   sampled PRECISE SAMPLES EXACT      samples of a loop of LOOP instructions; of these, whose address is said to be
//   exact (of PEBS) shared RAW SCALED SINGLES          instructions of 20 loops by a group of three counters; scaled up
//   by the time that it had, while
//                                      SINGLES more count the same: more than there are
//   overflows FIRST SECOND COUNTED     signals of two counters, at each PERIOD and each 2 x PERIOD instructions, and
//   what the first one counted thread ROUNDS COUNTED              instructions of so many loops in a thread of its own,
//   by RDPMC in that thread
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  LOOP = 1000000,
  PERIOD = 100000,
  SAMPLE_PERIOD = 10007,
  THREADS = 4,
  GROUP = 3,
  SINGLES = 4,
  PAGE = 4096,
  RING_PAGES = 8
};

// LOOP instructions.
static void loop(void) {
  uint32_t left = (LOOP - 1) / 2;
  __asm__ volatile("nop\n nop\n 1: dec %0\n jnz 1b" : "+r"(left)::"cc");
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static struct perf_event_attr instructions(void) {
  struct perf_event_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = PERF_COUNT_HW_INSTRUCTIONS;
  attr.exclude_kernel = attr.exclude_hv = 1;
  return attr;
}

static int open_event(struct perf_event_attr* attr, int group) {
  const int fd = (int)syscall(SYS_perf_event_open, attr, 0, -1, group, 0);
  if (fd < 0) fail("perf_event_open");
  return fd;
}

static struct perf_event_mmap_page* map_event(int fd, int pages) {
  void* const at = mmap(NULL, (size_t)(1 + pages) * PAGE, PROT_READ | (pages > 0 ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail("mmap of an event");
  return at;
}

static void sampled(unsigned precise) {
  struct perf_event_attr attr = instructions();
  attr.sample_period = SAMPLE_PERIOD;
  attr.sample_type = PERF_SAMPLE_IP;
  attr.precise_ip = precise & 3;
  attr.disabled = 1;
  const int fd = open_event(&attr, -1);
  struct perf_event_mmap_page* const ring = map_event(fd, RING_PAGES);
  ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
  loop();
  ioctl(fd, PERF_EVENT_IOC_DISABLE, 0);
  unsigned samples = 0, exact = 0;
  for (uint64_t at = 0; at < ring->data_head;) {
    const struct perf_event_header* const record = (void*)((char*)ring + PAGE + at);
    samples += record->type == PERF_RECORD_SAMPLE;
    exact += record->type == PERF_RECORD_SAMPLE && (record->misc & PERF_RECORD_MISC_EXACT_IP) != 0;
    at += record->size;
  }
  printf("sampled %u %u %u\n", precise, samples, exact);
  close(fd);
}

struct reading {
  uint64_t value, enabled, running;
};

static void shared(unsigned singles) {
  struct perf_event_attr attr = instructions();
  attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  attr.disabled = 1;
  int fds[GROUP + SINGLES];
  for (int i = 0; i < GROUP; ++i) {
    fds[i] = open_event(&attr, i == 0 ? -1 : fds[0]);
    attr.disabled = 0;
  }
  for (unsigned i = 0; i < singles; ++i) fds[GROUP + i] = open_event(&attr, -1);
  ioctl(fds[0], PERF_EVENT_IOC_ENABLE, 0);
  for (int i = 0; i < 20; ++i) loop();
  struct reading r;
  if (read(fds[0], &r, sizeof r) != (ssize_t)sizeof r || r.running == 0) fail("read of a counter");
  ioctl(fds[0], PERF_EVENT_IOC_DISABLE, 0);
  const uint64_t scaled = (uint64_t)((double)r.value * (double)r.enabled / (double)r.running);
  printf("shared %llu %llu %u\n", (unsigned long long)r.value, (unsigned long long)scaled, singles);
  for (unsigned i = 0; i < GROUP + singles; ++i) close(fds[i]);
}

static int sampling[2];
static volatile unsigned signals[2];
static void on_overflow(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)context;
  for (int i = 0; i < 2; ++i) signals[i] += info->si_fd == sampling[i];
}

static void overflows(void) {
  const int on = SIGRTMIN + 2;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_overflow;
  action.sa_flags = SA_SIGINFO;
  sigaction(on, &action, NULL);
  for (int i = 0; i < 2; ++i) {
    struct perf_event_attr attr = instructions();
    attr.sample_period = (uint64_t)PERIOD << i;
    attr.wakeup_events = 1;
    attr.disabled = 1;
    sampling[i] = open_event(&attr, -1);
    map_event(sampling[i], 1);
    fcntl(sampling[i], F_SETFL, O_RDWR | O_NONBLOCK | O_ASYNC);
    fcntl(sampling[i], F_SETSIG, on);
    fcntl(sampling[i], F_SETOWN, getpid());
  }
  for (int i = 0; i < 2; ++i) ioctl(sampling[i], PERF_EVENT_IOC_ENABLE, 0);
  for (int i = 0; i < 10; ++i) loop();
  for (int i = 0; i < 2; ++i) ioctl(sampling[i], PERF_EVENT_IOC_DISABLE, 0);
  uint64_t counted = 0;
  if (read(sampling[0], &counted, sizeof counted) != (ssize_t)sizeof counted) fail("read of a counter");
  printf("overflows %u %u %llu\n", signals[0], signals[1], (unsigned long long)counted);
  for (int i = 0; i < 2; ++i) close(sampling[i]);
}

// As linux/perf_event.h tells programs to read a counter of their own.
static uint64_t read_by_rdpmc(const volatile struct perf_event_mmap_page* page) {
  for (;;) {
    const uint32_t sequence = page->lock;
    __asm__ volatile("" ::: "memory");
    const uint32_t index = page->index;
    int64_t count = page->offset;
    if (index == 0) fail("a counter without an index");
    uint32_t low, high;
    __asm__ volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(index - 1));
    const unsigned shift = 64U - page->pmc_width;
    count += (int64_t)(((uint64_t)high << 32 | low) << shift) >> shift;
    __asm__ volatile("" ::: "memory");
    if (page->lock == sequence) return (uint64_t)count;
  }
}

static void* count_in_thread(void* argument) {
  const uintptr_t rounds = (uintptr_t)argument;
  struct perf_event_attr attr = instructions();
  const int fd = open_event(&attr, -1);
  const struct perf_event_mmap_page* const page = map_event(fd, 0);
  const uint64_t before = read_by_rdpmc(page);
  for (uintptr_t i = 0; i < rounds; ++i) loop();
  const uint64_t counted = read_by_rdpmc(page) - before;
  printf("thread %lu %llu\n", (unsigned long)rounds, (unsigned long long)counted);
  close(fd);
  return NULL;
}

int main(void) {
  for (unsigned precise = 0; precise <= 2; ++precise) sampled(precise);
  overflows();
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; ++i)
    if (pthread_create(&threads[i], NULL, count_in_thread, (void*)((i + 1) * 5)) != 0) fail("pthread_create");
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  shared(0);
  for (int i = 0; i < 3; ++i) shared(SINGLES);
  return 0;
}
