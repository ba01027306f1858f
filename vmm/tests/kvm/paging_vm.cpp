#include "kvm/paging_vm.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

/// KVM applies the page-table rules of the guest CPU's vendor: AMD reserves bits that Intel ignores.
CpuidTable as_intel(const CpuidTable& host) {
  auto entries = host.entries();
  for (auto& entry : entries) {
    if (entry.function != 0) continue;
    entry.ebx = 0x756e6547;  // "Genu"
    entry.edx = 0x49656e69;  // "ineI"
    entry.ecx = 0x6c65746e;  // "ntel"
  }
  return CpuidTable{std::move(entries)};
}

PagingFeatures features_of(const CpuidTable& cpuid) {
  using vpmu::Bits;
  const auto sizes = cpuid.get(0x8000'0008);
  const auto extended = cpuid.get(0x8000'0001);
  const auto structured = cpuid.get(7);
  return {.physical_width = static_cast<std::uint8_t>(Bits<7, 0>::get(sizes.eax)),
          .gigabyte_pages = Bits<26>::test(extended.edx),
          .smep = Bits<7>::test(structured.ebx),
          .smap = Bits<20>::test(structured.ebx),
          .la57 = Bits<16>::test(structured.ecx),
          .execute_disable = Bits<20>::test(extended.edx),
          .is_amd_host = cpuid.get(0).ecx == 0x444d4163};  // "cAMD"
}

kvm_segment flat_segment(std::uint16_t selector, std::uint8_t type, std::uint8_t dpl, bool is_long) {
  kvm_segment segment{};
  segment.limit = 0xffff'ffff;
  segment.selector = static_cast<std::uint16_t>(selector | dpl);
  segment.type = type;
  segment.present = 1;
  segment.dpl = dpl;
  segment.db = is_long ? 0 : 1;
  segment.s = 1;
  segment.l = is_long ? 1 : 0;
  segment.g = 1;
  return segment;
}

template <class Word>
bool exchange(std::byte* at, std::uint64_t expected, std::uint64_t desired) {
  auto old = static_cast<Word>(expected);
  return __atomic_compare_exchange_n(reinterpret_cast<Word*>(at), &old, static_cast<Word>(desired), false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

}  // namespace

Result<FlatRam> FlatRam::create(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return host_error("mmap of test RAM", errno);
  return FlatRam{Mapping{base, bytes}};
}

std::optional<std::uint64_t> FlatRam::read_word(vpmu::GuestPhysical at, unsigned bytes) {
  if (at.value() >= mapping_.size()) return std::nullopt;
  return bytes == 4 ? peek<std::uint32_t>(at.value()) : peek<std::uint64_t>(at.value());
}

bool FlatRam::exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) {
  if (at.value() >= mapping_.size()) return false;
  std::byte* where = this->bytes().subspan(at.value(), bytes).data();
  return bytes == 4 ? exchange<std::uint32_t>(where, expected, desired)
                    : exchange<std::uint64_t>(where, expected, desired);
}

Result<std::unique_ptr<PagingVm>> PagingVm::create(const System& system, std::size_t ram_bytes) {
  VMM_ASSIGN(const CpuidTable host_cpuid, system.supported_cpuid());
  VMM_ASSIGN(FlatRam ram, FlatRam::create(ram_bytes));
  VMM_ASSIGN(Vm vm, system.create_vm());
  VMM_TRY(vm.set_reserved_pages(vpmu::GuestPhysical{0xfeff'c000}));
  VMM_TRY(vm.map_memory(0, vpmu::GuestPhysical{0}, ram.bytes()));
  VMM_ASSIGN(Vcpu vcpu, vm.create_vcpu(0));
  const CpuidTable cpuid = as_intel(host_cpuid);
  VMM_TRY(vcpu.set_cpuid(cpuid));
  return std::unique_ptr<PagingVm>{
      new PagingVm{std::move(ram), features_of(host_cpuid), std::move(vm), std::move(vcpu)}};
}

Result<bool> PagingVm::walks_legacy_tables() {
  constexpr std::uint32_t next = 0x2003;  // Every entry of both tables: frame 2000H, present.
  for (std::uint64_t at = 0; at < 3 * vpmu::page_size; at += sizeof next) ram.poke(at, next);
  VMM_TRY(load({.cr0 = 0x8000'0001, .cr3 = 0x1000}, vpmu::PagingPrivilege::supervisor));
  VMM_ASSIGN(const Translation found, vcpu.translate(vpmu::GuestLinear{0x1234'5678}));
  return found.valid && found.at == vpmu::GuestPhysical{0x2678};
}

Result<void> PagingVm::load(const vpmu::PagingState& state, vpmu::PagingPrivilege privilege) {
  VMM_ASSIGN(kvm_sregs sregs, vcpu.sregs());
  const bool is_long = x86::cr0::PG::test(state.cr0) && x86::efer::LME::test(state.efer);
  const std::uint8_t dpl = privilege == vpmu::PagingPrivilege::user ? 3 : 0;
  sregs.cs = flat_segment(dpl == 0 ? 0x08 : 0x18, 0xb, dpl, is_long);
  sregs.ss = sregs.ds = sregs.es = sregs.fs = sregs.gs = flat_segment(dpl == 0 ? 0x10 : 0x20, 0x3, dpl, false);
  sregs.cr0 = state.cr0;
  sregs.cr2 = 0;
  sregs.cr3 = state.cr3;
  sregs.cr4 = state.cr4;
  sregs.efer = state.efer;
  VMM_TRY(vcpu.set_sregs(sregs));
  VMM_ASSIGN(kvm_regs regs, vcpu.regs());
  regs.rflags = 2 | (state.alignment_check ? x86::rflags::AC::mask : 0);
  VMM_TRY(vcpu.set_regs(regs));
  return vcpu.flush();
}

}  // namespace vmm::test
