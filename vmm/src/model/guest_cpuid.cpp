#include "model/guest_cpuid.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "model/clocks.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/cpuid.hpp"

namespace vmm {
namespace {

using vpmu::Bits;

using L1_C_X2APIC = Bits<21>;
using L1_C_TSC_DEADLINE = Bits<24>;
using L1_C_XSAVE = Bits<26>;
using L1_C_AVX_FAMILY = Bits<28>;
constexpr std::uint32_t l1_c_needs_avx = Bits<12>::mask | Bits<28>::mask | Bits<29>::mask;  // FMA AVX F16C
using L1_C_HYPERVISOR = Bits<31>;
using L1_D_HTT = Bits<28>;
using L7_B_AVX2 = Bits<5>;
using L7_B_TSC_ADJUST = Bits<1>;
constexpr std::uint32_t l6_a_arat = Bits<2>::mask;
constexpr std::uint32_t l6_c_aperf_mperf = Bits<0>::mask;
constexpr std::uint32_t l80000007_d_invariant_tsc = Bits<8>::mask;
constexpr std::uint32_t xcr0_legacy = x86::xcr0::x87::mask | x86::xcr0::SSE::mask;

constexpr std::uint32_t clocks_leaf = 0x16;
constexpr std::uint32_t last_extended_leaf = 0x80000008;
constexpr std::uint32_t hypervisor_leaf = 0x40000000;
constexpr std::uint32_t cache_line = 64;
constexpr std::uint32_t linear_bits = 48;

/// The associativity of the L2 as leaf 80000006H has it. SDM 2A CPUID, table 3-8.
std::uint32_t l2_ways(std::uint32_t ways) {
  constexpr std::uint32_t see_leaf_4 = 7;
  switch (ways) {
    case 1: return 1;
    case 2: return 2;
    case 4: return 4;
    case 8: return 6;
    case 16: return 8;
    default: return see_leaf_4;
  }
}

/// Twelve characters as CPUID spreads them over three registers.
struct Signature {
  std::array<std::uint32_t, 3> words{};
  explicit Signature(std::string_view text) {
    std::memcpy(words.data(), text.data(), std::min<std::size_t>(text.size(), 12));
  }
};

/// Builds the table leaf by leaf; each member adds one group.
class Builder {
 public:
  Builder(const CpuidRequest& request, std::uint32_t apic_id)
      : model_{request.model},
        caches_{request.caches.value_or(request.model.caches)},
        host_{request.supported},
        request_{request},
        apic_id_{apic_id} {
    const auto host_1 = host_.get(1);
    leaf_1_ecx_ = model_.features.leaf_1_ecx & host_1.ecx;
    leaf_7_ = host_.get(7);
    leaf_7_.ebx &= model_.features.leaf_7_ebx;
    // KVM implements TSC_ADJUST itself, so it always works. Without it Linux checks the TSC against other clocks. Our
    // guests have only the timer's tick, which lags on a busy host, and Linux would stop using the TSC.
    leaf_7_.ebx |= L7_B_TSC_ADJUST::mask & (request_.bare_metal ? model_.features.leaf_7_ebx : ~std::uint32_t{0});
    if (!L1_C_XSAVE::test(leaf_1_ecx_) || !x86::xcr0::AVX::test(host_.get(0xD).eax)) {
      leaf_1_ecx_ &= ~l1_c_needs_avx;
    }
    if (!L1_C_AVX_FAMILY::test(leaf_1_ecx_)) {
      leaf_7_.ebx &= ~static_cast<std::uint32_t>(L7_B_AVX2::mask);
    }
  }

  CpuidTable build() {
    identity();
    features();
    caches();
    topology();
    extended_state();
    pmu();
    clocks();
    if (!request_.bare_metal) hypervisor();
    extended();
    return std::move(table_);
  }

 private:
  /// The logical processor ids of the package, a power of two: those of whole cores.
  [[nodiscard]] std::uint32_t ids() const { return std::bit_ceil(std::max(request_.cpus, request_.threads_per_core)); }

  void identity() {
    const Signature intel{"GenuineIntel"};
    const std::uint32_t last =
        request_.always_tells_clocks ? std::max(model_.last_leaf, clocks_leaf) : model_.last_leaf;
    table_.add(0, {.eax = last, .ebx = intel.words[0], .ecx = intel.words[2], .edx = intel.words[1]});
    table_.add(2, model_.leaf_2);
  }

  void features() {
    auto ecx = leaf_1_ecx_ | vpmu::cpuid_01h_ecx | static_cast<std::uint32_t>(L1_C_X2APIC::mask);
    if (!request_.bare_metal) ecx |= static_cast<std::uint32_t>(L1_C_HYPERVISOR::mask);
    ecx &= ~static_cast<std::uint32_t>(L1_C_TSC_DEADLINE::mask);
    if (request_.tsc_deadline) {
      ecx |= static_cast<std::uint32_t>(L1_C_TSC_DEADLINE::mask);
    }
    // HTT: the package has room for more than one. SDM 2A CPUID.
    const auto htt = static_cast<std::uint32_t>(L1_D_HTT::mask);
    const auto edx =
        (((model_.features.leaf_1_edx & host_.get(1).edx) | vpmu::cpuid_01h_edx) & ~htt) | (ids() > 1 ? htt : 0);
    const std::uint32_t ebx = apic_id_ << 24U | ids() << 16U | cache_line / 8 << 8U;
    table_.add(1, {.eax = model_.signature, .ebx = ebx, .ecx = ecx, .edx = edx});
    table_.add(5, {});
    table_.add(6, {.eax = l6_a_arat, .ecx = request_.counts_performance ? l6_c_aperf_mperf : 0});
    table_.add_subleaf(7, 0,
                       {.eax = 0,
                        .ebx = leaf_7_.ebx,
                        .ecx = leaf_7_.ecx & model_.features.leaf_7_ecx,
                        .edx = leaf_7_.edx & model_.features.leaf_7_edx});
  }

  void caches() {
    std::uint32_t subleaf = 0;
    for (const auto& cache : caches_) {
      const std::uint32_t sharers = cache.shared == CacheShape::Shared::core ? request_.threads_per_core : ids();
      const std::uint32_t cores = ids() / request_.threads_per_core;
      const std::uint32_t sets = cache.bytes / cache.ways / cache_line;
      table_.add_subleaf(4, subleaf++,
                         {.eax = static_cast<std::uint32_t>(cache.kind) | std::uint32_t{cache.level} << 5U | 1U << 8U |
                                 (sharers - 1) << 14U | (cores - 1) << 26U,
                          .ebx = (cache_line - 1) | (cache.ways - 1) << 22U,
                          .ecx = sets - 1,
                          .edx = cache.inclusive ? 2U : 0U});
    }
    table_.add_subleaf(4, subleaf, {});
  }

  // SDM 3A 8.9.1: level 0 = threads of a core, level 1 = cores of the package.
  void topology() {
    constexpr std::uint32_t thread_level = 1U << 8U;
    constexpr std::uint32_t core_level = 2U << 8U;
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(ids()));
    table_.add_subleaf(
        0xB, 0,
        {.eax = request_.threads_per_core - 1, .ebx = request_.threads_per_core, .ecx = thread_level, .edx = apic_id_});
    table_.add_subleaf(0xB, 1, {.eax = shift, .ebx = ids(), .ecx = core_level | 1U, .edx = apic_id_});
    table_.add_subleaf(0xB, 2, {.eax = 0, .ebx = 0, .ecx = 2, .edx = apic_id_});
  }

  void extended_state() {
    if (!L1_C_XSAVE::test(leaf_1_ecx_)) {
      return;
    }
    const bool avx = L1_C_AVX_FAMILY::test(leaf_1_ecx_);
    const auto avx_area = host_.get(0xD, 2);
    constexpr std::uint32_t legacy_and_header = 512 + 64;
    const std::uint32_t bytes = avx ? avx_area.ebx + avx_area.eax : legacy_and_header;
    // KVM keeps EBX in line with the guest's XCR0.
    table_.add_subleaf(0xD, 0,
                       {.eax = avx ? xcr0_legacy | static_cast<std::uint32_t>(x86::xcr0::AVX::mask) : xcr0_legacy,
                        .ebx = legacy_and_header,
                        .ecx = bytes});
    table_.add_subleaf(0xD, 1, {.eax = host_.get(0xD, 1).eax & model_.features.leaf_d_1_eax});
    if (avx) {
      table_.add_subleaf(0xD, 2, {.eax = avx_area.eax, .ebx = avx_area.ebx});
    }
  }

  void pmu() {
    const auto& description = vpmu::describe(model_.generation);
    const auto leaf = vpmu::cpuid_0ah(
        description, request_.threads_per_core == 1 ? description.gp_counters_no_smt : description.gp_counters);
    table_.add(0xA, {.eax = leaf.eax, .ebx = leaf.ebx, .ecx = leaf.ecx, .edx = leaf.edx});
  }

  // Leaf 16H in MHz: the base and highest frequencies, and the bus clock.
  void clocks() {
    auto ratio = crystal_ratio(model_, request_.tsc_hz);
    if (!ratio && request_.always_tells_clocks) ratio = tsc_as_crystal(request_.tsc_hz);
    if (!ratio) return;
    table_.add(0x15, {.eax = ratio->denominator, .ebx = ratio->numerator, .ecx = ratio->crystal_hz});
    const auto mhz = static_cast<std::uint32_t>(request_.tsc_hz / 1'000'000);
    table_.add(clocks_leaf,
               {.eax = mhz, .ebx = std::max(mhz, static_cast<std::uint32_t>(request_.core_khz / 1000)), .ecx = 100});
  }

  // KVM's signature, without which Linux does not trust x2APIC in a guest and falls back to emulated MMIO; but none of
  // its features: kvmclock would take away the TSC clock that PEBS time stamps need.
  void hypervisor() {
    const Signature kvm{std::string_view{"KVMKVMKVM\0\0\0", 12}};
    table_.add(hypervisor_leaf,
               {.eax = hypervisor_leaf + 1, .ebx = kvm.words[0], .ecx = kvm.words[1], .edx = kvm.words[2]});
    table_.add(hypervisor_leaf + 1, {});
  }

  void extended() {
    const auto host = host_.get(0x80000001);
    table_.add(0x80000000, {.eax = last_extended_leaf});
    table_.add(0x80000001, {.eax = 0,
                            .ebx = 0,
                            .ecx = host.ecx & model_.features.leaf_80000001_ecx,
                            .edx = host.edx & model_.features.leaf_80000001_edx});
    brand();
    table_.add(0x80000005, {});
    const auto& l2 = caches_[2];
    table_.add(0x80000006, {.ecx = l2.bytes >> 10U << 16U | l2_ways(l2.ways) << 12U | cache_line});
    table_.add(0x80000007, {.edx = l80000007_d_invariant_tsc});
    table_.add(0x80000008, {.eax = linear_bits << 8U | model_.physical_bits});
  }

  void brand() {
    auto text = fmt::format("{} @ {:.2f}GHz", model_.brand, static_cast<double>(request_.tsc_hz) / 1e9);
    text.resize(48);
    for (std::uint32_t leaf = 0; leaf < 3; ++leaf) {
      std::array<std::uint32_t, 4> words{};
      std::memcpy(words.data(), text.data() + std::size_t{leaf} * 16, 16);
      table_.add(0x80000002 + leaf, {.eax = words[0], .ebx = words[1], .ecx = words[2], .edx = words[3]});
    }
  }

  const MachineModel& model_;
  std::array<CacheShape, 4> caches_;
  const CpuidTable& host_;
  const CpuidRequest& request_;
  std::uint32_t apic_id_;
  std::uint32_t leaf_1_ecx_;
  CpuidRegisters leaf_7_;
  CpuidTable table_;
};

}  // namespace

CpuidTable guest_cpuid(const CpuidRequest& request, std::uint32_t apic_id) { return Builder{request, apic_id}.build(); }

}  // namespace vmm
