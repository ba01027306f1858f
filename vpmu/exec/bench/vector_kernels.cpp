#include <immintrin.h>

#include <cstring>

#include "kernels.hpp"

// The programs with vector and floating-point instructions. As in kernels.cpp everything lies in one section; so no
// number with a fraction stands in the code: compilers would put it elsewhere.
#define IN_KERNELS [[gnu::section("vpmu_kernels")]]
#define INLINE_HELPER [[gnu::always_inline]] inline

namespace vpmu::exec::bench {
namespace {

/// A number that the compiler does not know.
INLINE_HELPER double number(std::int64_t n) {
  __asm__("" : "+r"(n));
  return static_cast<double>(n);
}
INLINE_HELPER std::uint64_t bits(double d) {
  std::uint64_t b{};
  std::memcpy(&b, &d, sizeof b);
  return b;
}

constexpr std::uint64_t side = 64;

INLINE_HELPER void fill_matrices(double* a) {
  for (std::uint64_t i = 0; i < 2 * side * side; ++i) a[i] = number(static_cast<std::int64_t>(i * 7 % 23) - 11);
}

struct Body {
  double at[3], speed[3], mass;
};

INLINE_HELPER std::uint64_t length_of(const std::byte* text) {
  const __m128i zero = _mm_setzero_si128();
  for (std::uint64_t at = 0;; at += 16) {
    const __m128i chunk = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + at));
    const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(chunk, zero));
    if (found != 0) return at + static_cast<std::uint64_t>(__builtin_ctz(static_cast<unsigned>(found)));
  }
}
/// Of at least 32 bytes.
INLINE_HELPER void copy_text(std::byte* to, const std::byte* from, std::uint64_t size) {
  const auto load = [&](std::uint64_t at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)); };
  const auto store = [&](std::uint64_t at, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), v); };
  const __m128i last = load(size - 16);
  std::uint64_t at = 0;
  for (; at + 32 <= size; at += 32) {
    const __m128i a = load(at);
    const __m128i b = load(at + 16);
    store(at, a);
    store(at + 16, b);
  }
  if (at + 16 <= size) store(at, load(at));
  store(size - 16, last);
}

}  // namespace

extern "C" {

// Matrices of doubles, two at a time.
IN_KERNELS std::uint64_t vpmu_kernel_dgemm(std::byte* memory, std::uint64_t work) {
  auto* const a = reinterpret_cast<double*>(memory);
  auto* const b = a + side * side;
  auto* const c = b + side * side;
  fill_matrices(a);
  for (; work > 0; --work)
    for (std::uint64_t i = 0; i < side; ++i)
      for (std::uint64_t j = 0; j < side; j += 4) {
        __m128d low = _mm_load_pd(&c[i * side + j]);
        __m128d high = _mm_load_pd(&c[i * side + j + 2]);
        for (std::uint64_t k = 0; k < side; ++k) {
          const __m128d factor = _mm_set1_pd(a[i * side + k]);
          low = _mm_add_pd(low, _mm_mul_pd(factor, _mm_load_pd(&b[k * side + j])));
          high = _mm_add_pd(high, _mm_mul_pd(factor, _mm_load_pd(&b[k * side + j + 2])));
        }
        _mm_store_pd(&c[i * side + j], low);
        _mm_store_pd(&c[i * side + j + 2], high);
      }
  return bits(c[side + 1]) ^ bits(c[side * side - 1]);
}

// The same with AVX and FMA, four at a time.
IN_KERNELS [[gnu::target("avx2,fma")]] std::uint64_t vpmu_kernel_fma(std::byte* memory, std::uint64_t work) {
  auto* const a = reinterpret_cast<double*>(memory);
  auto* const b = a + side * side;
  auto* const c = b + side * side;
  for (std::uint64_t i = 0; i < 2 * side * side; ++i) {
    std::int64_t n = static_cast<std::int64_t>(i * 7 % 23) - 11;
    __asm__("" : "+r"(n));
    a[i] = static_cast<double>(n);
  }
  for (; work > 0; --work)
    for (std::uint64_t i = 0; i < side; ++i)
      for (std::uint64_t j = 0; j < side; j += 8) {
        __m256d low = _mm256_load_pd(&c[i * side + j]);
        __m256d high = _mm256_load_pd(&c[i * side + j + 4]);
        for (std::uint64_t k = 0; k < side; ++k) {
          const __m256d factor = _mm256_broadcast_sd(&a[i * side + k]);
          low = _mm256_fmadd_pd(factor, _mm256_load_pd(&b[k * side + j]), low);
          high = _mm256_fmadd_pd(factor, _mm256_load_pd(&b[k * side + j + 4]), high);
        }
        _mm256_store_pd(&c[i * side + j], low);
        _mm256_store_pd(&c[i * side + j + 4], high);
      }
  std::uint64_t one{};
  std::uint64_t two{};
  std::memcpy(&one, &c[side + 1], sizeof one);
  std::memcpy(&two, &c[side * side - 1], sizeof two);
  return one ^ two;
}

// The best place of a block in a picture, and a hash of rotations and sums.
IN_KERNELS std::uint64_t vpmu_kernel_sad(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t width = 512, height = 64;
  auto* const picture = reinterpret_cast<std::uint8_t*>(memory);
  std::uint64_t state = 6;
  for (std::uint64_t i = 0; i < width * height; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    picture[i] = static_cast<std::uint8_t>(state >> 56);
  }
  __m128i hash = _mm_loadu_si128(reinterpret_cast<const __m128i*>(picture));
  std::uint64_t best = ~0ULL;
  for (; work > 0; --work)
    for (std::uint64_t x = 0; x < width - 16; ++x) {
      __m128i sum = _mm_setzero_si128();
      for (std::uint64_t y = 0; y < 16; ++y) {
        const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&picture[y * width + x]));
        const __m128i block = _mm_load_si128(reinterpret_cast<const __m128i*>(&picture[(y + 32) * width]));
        sum = _mm_add_epi64(sum, _mm_sad_epu8(here, block));
        hash = _mm_xor_si128(_mm_or_si128(_mm_slli_epi32(hash, 5), _mm_srli_epi32(hash, 27)), here);
        hash = _mm_add_epi32(_mm_shuffle_epi32(hash, 0x39), sum);
      }
      const auto difference =
          static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum))));
      if (difference < best) best = difference;
    }
  return best ^ static_cast<std::uint64_t>(_mm_cvtsi128_si64(hash));
}

// Five bodies that attract each other: one double at a time, with roots and quotients.
IN_KERNELS std::uint64_t vpmu_kernel_nbody(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t bodies = 5, steps = 1000;
  auto* const all = reinterpret_cast<Body*>(memory);
  for (std::uint64_t i = 0; i < bodies; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    all[i] = {{number(n * n + 1), number(3 - n), number(2 * n)}, {number(n - 2), number(1), number(-n)}, number(n + 1)};
  }
  const double step = number(1) / number(1000);
  for (std::uint64_t s = 0; s < work * steps; ++s) {
    for (std::uint64_t i = 0; i < bodies; ++i)
      for (std::uint64_t j = i + 1; j < bodies; ++j) {
        double d[3];
        double square = step;
        for (unsigned k = 0; k < 3; ++k) {
          d[k] = all[i].at[k] - all[j].at[k];
          square += d[k] * d[k];
        }
        const double force = step / (square * _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(square))));
        for (unsigned k = 0; k < 3; ++k) {
          all[i].speed[k] -= d[k] * all[j].mass * force;
          all[j].speed[k] += d[k] * all[i].mass * force;
        }
      }
    for (std::uint64_t i = 0; i < bodies; ++i)
      for (unsigned k = 0; k < 3; ++k) all[i].at[k] += step * all[i].speed[k];
  }
  return bits(all[0].at[0]) ^ bits(all[4].at[2]);
}

// Numbers of 80 bits: x87.
IN_KERNELS std::uint64_t vpmu_kernel_x87(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t count = 1024;
  auto* const all = reinterpret_cast<long double*>(memory);
  for (std::uint64_t i = 0; i < count; ++i) all[i] = number(static_cast<std::int64_t>(i * 13 % 31) + 1);
  long double sum = 0;
  for (; work > 0; --work)
    for (std::uint64_t i = 0; i + 1 < count; ++i) {
      sum = sum / all[i] + all[i + 1] * all[i];
      all[i] = all[i + 1] - sum / all[i + 1] + all[i];
    }
  return bits(static_cast<double>(sum));
}

// Strings are measured and copied, as C libraries do it with SSE2.
IN_KERNELS std::uint64_t vpmu_kernel_string(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t count = 512, room = 256;
  std::byte* const copies = memory + count * room;
  std::uint64_t state = 7;
  for (std::uint64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t size = 40 + (state >> 57);
    for (std::uint64_t at = 0; at < size; ++at) memory[i * room + at] = static_cast<std::byte>('a' + at % 26);
  }
  std::uint64_t sum = 0;
  for (; work > 0; --work)
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t size = length_of(memory + i * room);
      copy_text(copies + i * room, memory + i * room, size + 1);
      sum = sum * 31 + size + std::to_integer<std::uint64_t>(copies[i * room + size / 2]);
    }
  return sum;
}
}

}  // namespace vpmu::exec::bench
