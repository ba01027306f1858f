// A debugger and what it debugs, while a counter counts the latter.
//
//   debugged step N      single-steps the child N times through a loop of known instructions
//   debugged watch N     lets the child write N times to a word with a watchpoint on it, and as often beside it
//
// Prints "MODE RIGHT COUNT": how many stops were where they had to be, and what the counter of the child's instructions
// in user mode says.
#include <linux/perf_event.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

// Six instructions, one of them a system call and one left to the hypervisor. Their addresses are known by labels.
void walked(long rounds);
extern const char walked_1[], walked_2[], walked_3[], walked_4[], walked_5[], walked_6[], walked_end[];
asm(".globl walked, walked_1, walked_2, walked_3, walked_4, walked_5, walked_6, walked_end\n"
    "walked:\n push %rbx\n mov %rdi, %r8\n int3\n"
    "walked_1: mov $39, %eax\n"  // getpid
    "walked_2: syscall\n"
    "walked_3: xor %eax, %eax\n"
    "walked_4: cpuid\n"
    "walked_5: dec %r8\n"
    "walked_6: jnz walked_1\n"
    "walked_end: pop %rbx\n ret\n");

static volatile struct {
  uint64_t before, watched, behind;
} words;

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int count(pid_t child) {
  struct perf_event_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.type = PERF_TYPE_HARDWARE;
  attr.config = PERF_COUNT_HW_INSTRUCTIONS;
  attr.exclude_kernel = 1;
  const int fd = (int)syscall(SYS_perf_event_open, &attr, child, -1, -1, 0);
  if (fd < 0) fail("perf_event_open");
  return fd;
}

static void go_on(pid_t child, int how, int* status) {
  if (ptrace(how, child, 0, 0) != 0) fail("ptrace");
  if (waitpid(child, status, 0) != child) fail("waitpid");
}

static int is_trap(int status) { return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP; }

static void be_debugged(int stepped, long times) {
  if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) fail("PTRACE_TRACEME");
  raise(SIGSTOP);
  if (stepped) walked(times);
  for (long i = 1; !stepped && i <= times; ++i) {
    words.before = (uint64_t)i;
    words.watched = (uint64_t)i;
    words.behind = (uint64_t)i;
  }
  _exit(0);
}

static void poke_debug_register(pid_t child, unsigned i, uint64_t value) {
  if (ptrace(PTRACE_POKEUSER, child, offsetof(struct user, u_debugreg) + 8 * i, value) != 0) fail("PTRACE_POKEUSER");
}

// To the INT3 before the loop, then from each instruction to the next.
static long step(pid_t child, long times) {
  const char* const path[] = {walked_1, walked_2, walked_3, walked_4, walked_5, walked_6};
  struct user_regs_struct regs;
  long right = 0;
  int status = 0;
  go_on(child, PTRACE_CONT, &status);
  for (long n = 0; n < times && is_trap(status); ++n) {
    if (ptrace(PTRACE_GETREGS, child, 0, &regs) != 0) fail("PTRACE_GETREGS");
    if (regs.rip != (uint64_t)path[n % 6]) break;
    go_on(child, PTRACE_SINGLESTEP, &status);
    if (is_trap(status)) ++right;
  }
  return right;
}

static long watch(pid_t child) {
  long right = 0;
  int status = 0;
  poke_debug_register(child, 0, (uint64_t)&words.watched);
  poke_debug_register(child, 7, 1 | 1 << 16 | 2 << 18);  // 8 bytes, written
  for (;;) {
    go_on(child, PTRACE_CONT, &status);
    if (!is_trap(status)) return right;
    const long now = ptrace(PTRACE_PEEKDATA, child, &words.watched, 0);
    const long behind = ptrace(PTRACE_PEEKDATA, child, &words.behind, 0);
    if (now == right + 1 && behind == right) ++right;
  }
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int stepped = strcmp(argv[1], "step") == 0;
  const long times = atol(argv[2]);
  const pid_t child = fork();
  if (child == 0) be_debugged(stepped, times);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) fail("fork");
  const int fd = count(child);
  const long right = stepped ? step(child, times) : watch(child);
  uint64_t counted = 0;
  if (read(fd, &counted, sizeof counted) != sizeof counted) fail("read");
  kill(child, SIGKILL);
  printf("%s %ld %llu\n", argv[1], right, (unsigned long long)counted);
  return 0;
}
