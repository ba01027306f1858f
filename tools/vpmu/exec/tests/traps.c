// Raises each floating-point exception by SSE and by x87, while one of them is unmasked, and prints what the signal
// says and what the handler finds. The handler leaves, or masks all exceptions and goes on.
#define _GNU_SOURCE
#include <fenv.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>

enum { flags = 0x3F, x87_summary_and_busy = 0x8080, mxcsr_masks = 0x1F80 };

static sigjmp_buf back;
static volatile int goes_on, signals, code, found;

static void on_signal(int number, siginfo_t* info, void* context) {
  struct _libc_fpstate* const state = ((ucontext_t*)context)->uc_mcontext.fpregs;
  ++signals;
  code = number * 100 + info->si_code;
  found = (int)(state->mxcsr & flags) << 16 | (state->swd & (flags | x87_summary_and_busy));
  if (!goes_on) siglongjmp(back, 1);
  state->mxcsr |= mxcsr_masks;
  state->cwd |= flags;
  state->swd &= (unsigned short)~(flags | x87_summary_and_busy);
}

static volatile double zero = 0, one = 1, three = 3, huge = 1e300, tiny = 1e-300;
static volatile long double long_zero = 0, long_one = 1, long_three = 3, long_huge = 1e4900L, long_tiny = 1e-4900L;
static volatile double result;
static volatile long double long_result;

static void by_sse(int exception) {
  switch (exception) {
    case FE_INVALID: result = zero / zero; break;
    case FE_DIVBYZERO: result = one / zero; break;
    case FE_OVERFLOW: result = huge * huge; break;
    case FE_UNDERFLOW: result = tiny * tiny; break;
    default: result = one / three; break;
  }
}
static void by_x87(int exception) {
  switch (exception) {
    case FE_INVALID: long_result = long_zero / long_zero; break;
    case FE_DIVBYZERO: long_result = long_one / long_zero; break;
    case FE_OVERFLOW: long_result = long_huge * long_huge; break;
    case FE_UNDERFLOW: long_result = long_tiny * long_tiny; break;
    default: long_result = long_one / long_three; break;
  }
  __asm__ volatile("fwait");
}

static void raise_one(int unit, int raised, int unmasked) {
  volatile int after = 0;
  signals = code = found = 0;
  result = 0;
  long_result = 0;
  if (sigsetjmp(back, 1) == 0) {
    fesetenv(FE_DFL_ENV);
    feenableexcept(unmasked);
    if (unit == 0)
      by_sse(raised);
    else
      by_x87(raised);
    after = fetestexcept(FE_ALL_EXCEPT);
  }
  fesetenv(FE_DFL_ENV);
  printf("%d signals, %d, found %#x, after %#x, %a %La\n", signals, code, (unsigned)found, (unsigned)after, result,
         long_result);
}

static void raise_each(void) {
  static const int all[] = {FE_INVALID, FE_DIVBYZERO, FE_OVERFLOW, FE_UNDERFLOW, FE_INEXACT};
  for (int unit = 0; unit < 2; ++unit)
    for (int raised = 0; raised < 5; ++raised)
      for (int unmasked = 0; unmasked < 5; ++unmasked)
        for (goes_on = 0; goes_on < 2; ++goes_on) {
          printf("%s: %d raised, %d unmasked: ", unit == 0 ? "SSE" : "x87", raised, unmasked);
          raise_one(unit, all[raised], all[unmasked]);
        }
}

// What a program with -ffpe-trap=invalid,zero,overflow does most of the time; and the end of it.
static void raise_after_a_loop(void) {
  goes_on = signals = code = 0;
  volatile double sum = 0;
  volatile long double long_sum = 0;
  volatile int n = 20000;
  fesetenv(FE_DFL_ENV);
  feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
  if (sigsetjmp(back, 1) == 0)
    for (;; --n) {
      sum += one / n;
      long_sum += long_one / n;
    }
  fesetenv(FE_DFL_ENV);
  printf("%d signals, %d, at %d: %a %La\n", signals, code, n, sum, long_sum);
}

int main(void) {
  const struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGFPE, &action, NULL);
  sigaction(SIGILL, &action, NULL);
  raise_each();
  raise_after_a_loop();
  return 0;
}
