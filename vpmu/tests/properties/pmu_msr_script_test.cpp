#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <ostream>
#include <vector>

#include "msr_expectations.hpp"
#include "vpmu/address.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/pmu.hpp"

// Random scripts of WRMSR against a naive model: a map of registers and the rules of msr_expectations.hpp. After each
// write every register is compared.

namespace vpmu::test {
namespace {

struct Write {
  std::uint32_t index{};
  std::uint64_t value{};
};
std::ostream& operator<<(std::ostream& out, const Write& w) {
  return out << std::hex << "wrmsr " << w.index << " = " << w.value;
}

/// The registers as a map, absent ones left out.
class NaivePmu {
 public:
  NaivePmu() {
    for (const MsrExpectation& m : skylake_msrs)
      for (std::uint32_t i = 0; i < m.present; ++i) registers_[m.first.value() + i] = m.reset;
  }

  [[nodiscard]] static const MsrExpectation* find(std::uint32_t index) {
    for (const MsrExpectation& m : skylake_msrs)
      if (index - m.first.value() < m.count) return &m;
    return nullptr;
  }

  MsrStatus write(std::uint32_t index, std::uint64_t value) {
    const MsrExpectation* m = find(index);
    if (m == nullptr) return MsrStatus::unknown;
    if (!registers_.contains(index) || m->access == MsrAccess::read_only || (value & faulting(*m)) != 0)
      return MsrStatus::gp;
    if (m->canonical && !is_canonical(value, 48)) return MsrStatus::gp;
    const std::uint32_t i = index - m->first.value();
    if (m->name == "IA32_PMC") {
      const std::uint64_t extended = (value & 0xFFFF'FFFF) | ((value & bit(31)) != 0 ? 0xFFFF'0000'0000 : 0);
      registers_[index] = registers_[0x4C1 + i] = extended;
    } else if (m->name == "IA32_A_PMC") {
      registers_[index] = registers_[0xC1 + i] = value;
    } else if (m->name == "IA32_PERF_GLOBAL_OVF_CTRL") {
      registers_[0x38E] &= ~value;
    } else if (m->name == "IA32_PERF_GLOBAL_STATUS_SET") {
      registers_[0x38E] |= value;
    } else if (m->canonical) {
      registers_[index] = value;
    } else {
      registers_[index] = (registers_[index] & ~m->stored) | (value & m->stored);
    }
    return MsrStatus::ok;
  }

  [[nodiscard]] MsrStatus status_of_read(std::uint32_t index) const {
    if (find(index) == nullptr) return MsrStatus::unknown;
    return registers_.contains(index) ? MsrStatus::ok : MsrStatus::gp;
  }
  [[nodiscard]] std::uint64_t read(std::uint32_t index) const {
    return index == 0x392 ? inuse() : registers_.at(index);
  }

 private:
  /// Bits 11 and 12 of IA32_MISC_ENABLE fault when they change; here they start as 0.
  static std::uint64_t faulting(const MsrExpectation& m) { return m.faulting; }

  [[nodiscard]] std::uint64_t inuse() const {
    std::uint64_t bits = 0;
    bool pmi = (registers_.at(0x3F1) & 0xF) != 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint64_t select = registers_.at(0x186 + i);
      if ((select & 0xFF) != 0) bits |= bit(i);
      pmi = pmi || (select & bit(20)) != 0;
    }
    for (unsigned n = 0; n < 3; ++n) {
      const std::uint64_t nibble = registers_.at(0x38D) >> (4 * n);
      if ((nibble & 3) != 0) bits |= bit(32 + n);
      pmi = pmi || (nibble & 8) != 0;
    }
    return bits | (pmi ? bit(63) : 0);
  }

  std::map<std::uint32_t, std::uint64_t> registers_;
};

/// Mostly a register of the PMU, and a value that is mostly near the border of what it takes.
rc::Gen<Write> any_write() {
  return rc::gen::exec([] {
    const MsrExpectation& m =
        *rc::gen::elementOf(std::vector<MsrExpectation>(skylake_msrs.begin(), skylake_msrs.end()));
    const auto wide = *rc::gen::arbitrary<std::uint64_t>();
    const std::uint64_t one = bit(*rc::gen::inRange(0U, 64U));
    const auto sign = static_cast<std::uint64_t>(static_cast<std::int64_t>(wide << 16) >> 16);
    Write w;
    w.index = m.first.value() + *rc::gen::inRange(0U, m.count);
    if (*rc::gen::inRange(0, 20) == 0) w.index += *rc::gen::inRange(1U, 0x40U);
    w.value = *rc::gen::element(wide, wide & m.stored, wide & ~m.faulting, one, one | (wide & m.stored), sign,
                                std::uint64_t{0});
    return w;
  });
}

void expect_agreement(const Pmu& pmu, const NaivePmu& naive) {
  for (const MsrExpectation& m : skylake_msrs)
    for (std::uint32_t i = 0; i < m.count; ++i) {
      const MsrReadResult read = pmu.rdmsr(m.first + i);
      RC_ASSERT(read.status == naive.status_of_read(m.first.value() + i));
      if (read.status == MsrStatus::ok) RC_ASSERT(read.value == naive.read(m.first.value() + i));
    }
}

RC_GTEST_PROP(MsrScriptProperty, AgreesWithAMapOfRegisters, ()) {
  const auto script = *rc::gen::container<std::vector<Write>>(any_write());
  Pmu pmu{PmuConfig{}};
  NaivePmu naive;
  expect_agreement(pmu, naive);
  for (const Write& w : script) {
    const MsrStatus expected = naive.write(w.index, w.value);
    RC_ASSERT(pmu.wrmsr(MsrIndex{w.index}, w.value) == expected);
    expect_agreement(pmu, naive);
  }
}

}  // namespace
}  // namespace vpmu::test
