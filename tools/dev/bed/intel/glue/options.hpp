#pragma once
#include <cstdint>
#include <string>

namespace bed {

/// The CPU's options, from the environment: BED_MODEL, BED_SIGNATURE (hexadecimal), BED_SKID, BED_CYCLES, BED_SEED,
/// BED_WARM=1.
struct Options {
  std::string model{"skylake"};      ///< vpmu's name of the PMU's generation and of the caches.
  std::uint32_t signature{0x506E3};  ///< CPUID.01H:EAX.
  unsigned skid{};                   ///< PMIs are delayed by up to so many instructions.
  unsigned cycles{1};                ///< An instruction takes 1 to so many cycles, by its address.
  std::uint64_t seed{1};             ///< Selects the values of both.
  bool warm{};                       ///< Caches, TLBs and predictors also work while nothing counts.

  /// 1 to `cycles`.
  [[nodiscard]] std::uint64_t cycles_at(std::uint64_t ip) const {
    return cycles <= 1 ? 1 : 1 + mixed(ip + seed) % cycles;
  }
  /// Pseudo-random numbers: the same sequence for the same seed.
  [[nodiscard]] unsigned random() const {
    static std::uint64_t state = 0;
    return static_cast<unsigned>(mixed(seed + ++state));
  }

 private:
  /// MurmurHash3's finalizer.
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDULL;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ULL;
    return x ^ (x >> 33);
  }
};

/// The options, which are read once.
const Options& options();

/// Connects Bochs's I/O port to the channels (channels.cc).
void connect_channels();

}  // namespace bed
