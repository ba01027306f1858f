// Forks, threads and programs, of which each executes the same instructions however they are scheduled. One is ended by
// a signal.
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>

enum { children = 5, threads = 4, rounds = 20000, stack_bytes = 4096, wall = 0x40000000 };

static long call(long number, long a, long b, long c, long d, long e) {
  long result = number;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return result;
}

static void work(long times) {
  for (volatile long i = 0; i < times; ++i) continue;
}

static _Noreturn void leave(int code) {
  for (;;) call(SYS_exit, code, 0, 0, 0, 0);
}

static void use_cpu(unsigned long cpu) {
  unsigned long mask = 1UL << cpu;
  call(SYS_sched_setaffinity, 0, sizeof mask, (long)&mask, 0, 0);
}

static int ends[2];
static char stacks[threads][stack_bytes] __attribute__((aligned(64)));

static void write_byte(void) { call(SYS_write, ends[1], (long)"x", 1, 0, 0); }
static void read_byte(void) {
  char byte;
  call(SYS_read, ends[0], (long)&byte, 1, 0, 0);
}

static _Noreturn void be_thread(void) {
  work(rounds);
  call(SYS_sched_yield, 0, 0, 0, 0, 0);
  work(rounds);
  write_byte();
  leave(0);
}

// The new thread begins with nothing on its stack but where it goes on.
long start_thread(void (*act)(void), char* stack_end);
__asm__(
    ".text\nstart_thread:\n  lea -8(%rsi), %rsi\n  mov %rdi, (%rsi)\n  mov $0x10f00, %edi\n  mov $56, %eax\n  xor "
    "%edx, %edx\n"
    "  syscall\n  test %rax, %rax\n  jnz 1f\n  pop %rax\n  jmp *%rax\n1: ret\n");

static void wait_for(long process) { call(SYS_wait4, process, 0, wall, 0, 0); }

__attribute__((used)) static _Noreturn void begin(long* words) {
  if (words[0] > 1) {
    work(rounds);
    leave(0);
  }
  char* const again[] = {(char*)words[1], "again", NULL};
  for (long i = 0; i < children; ++i) {
    const long child = call(SYS_fork, 0, 0, 0, 0, 0);
    if (child == 0) {
      use_cpu((unsigned long)i & 3);
      work(rounds * i);
      if (i == 1) call(SYS_execve, words[1], (long)again, 0, 0, 0);
      if (i == 2) *(volatile int*)0 = 1;
      leave(0);
    }
    if (i % 2 == 1) wait_for(child);
  }
  call(SYS_pipe2, (long)ends, 0, 0, 0, 0);
  for (long i = 0; i < threads; ++i) start_thread(be_thread, stacks[i] + stack_bytes);
  for (long i = 0; i < threads; ++i) read_byte();
  for (long i = 0; i < children; i += 2) wait_for(-1);
  use_cpu(1);
  work(rounds);
  leave(0);
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n  and $-16, %rsp\n  call begin\n");
