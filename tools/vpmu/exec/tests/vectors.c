// Uses what a Haswell brought, for tests: gathers, FMA and BMI2, in two processes at once, with signals in between.
// Each line is a number that must come out the same wherever it runs. Built for x86-64-v3.
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { rounds = 200, words = 1024 };

static volatile sig_atomic_t signals;

// A handler has vector registers of its own: those of the program come back behind it.
static void on_signal(int number) {
  volatile __m256i other = _mm256_set1_epi32(number);
  (void)other;
  __asm__ volatile("vpcmpeqd %%ymm0, %%ymm0, %%ymm0; vmovdqa %%ymm0, %%ymm7; vmovdqa %%ymm0, %%ymm15" ::
                       : "xmm0", "xmm7", "xmm15");
  ++signals;
}

static uint64_t sum_of(__m256i v) {
  uint64_t part[4], sum = 0;
  memcpy(part, &v, sizeof part);
  for (int i = 0; i < 4; ++i) sum = sum * 31 + part[i];
  return sum;
}

static uint64_t gathered(const int32_t* table, uint64_t seed) {
  __m256i sum = _mm256_setzero_si256();
  for (int n = 0; n < rounds; ++n) {
    const __m256i index =
        _mm256_and_si256(_mm256_set1_epi32((int)(seed + (uint64_t)n * 7)), _mm256_set1_epi32(words / 8 - 1));
    const __m256i spread = _mm256_add_epi32(index, _mm256_setr_epi32(0, 128, 256, 384, 512, 640, 768, 895));
    const __m256i mask = _mm256_setr_epi32(-1, 0, -1, -1, 0, -1, -1, -1);
    sum = _mm256_add_epi32(sum, _mm256_mask_i32gather_epi32(sum, table, spread, mask, 4));
    seed = _pdep_u64(seed * 0x9E3779B97F4A7C15u, 0x00FF00FF00FF00FFu) ^ _pext_u64(seed, 0xF0F0F0F0F0F0F0F0u);
  }
  return sum_of(sum) ^ seed;
}

static uint64_t fused(void) {
  __m256d a = _mm256_setr_pd(1.25, -2.5, 3.75, 0.1), b = _mm256_set1_pd(0.9999);
  for (int n = 0; n < rounds; ++n) {
    a = _mm256_fmadd_pd(a, b, _mm256_set1_pd(0.5));
    if (n % 50 == 0) raise(SIGUSR1);
    if (n % 20 == 0) getppid();
  }
  return sum_of(_mm256_castpd_si256(a));
}

int main(void) {
  static int32_t table[words];
  for (int n = 0; n < words; ++n) table[n] = n * n;
  signal(SIGUSR1, on_signal);
  const pid_t child = fork();
  const uint64_t seed = child == 0 ? 3 : 5;
  const uint64_t sum = gathered(table, seed) + fused();
  int status = 0;
  if (child != 0) waitpid(child, &status, 0);
  printf("%s %016lx, %d signals\n", child == 0 ? "child" : "parent", (unsigned long)sum, (int)signals);
  return status;
}
