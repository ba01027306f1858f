#include "kvm/access_guest.hpp"

#include <array>
#include <variant>

#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

using vpmu::page_size;
using vpmu::PagingAccess;
using vpmu::PagingPrivilege;

// Physical and linear addresses of the guest's own pages.
constexpr std::uint64_t gdt = 0x1000, idt = 0x2000, tss = 0x3000, stack_top = 0x5000;
constexpr std::uint64_t supervisor_code = 0x6000, user_code = 0x7000;
constexpr std::uint64_t fault_handler = supervisor_code + 0x100;

constexpr std::uint16_t reached_port = 0x10, fault_port = 0x11;
constexpr std::uint64_t P = vpmu::bit(0), RW = vpmu::bit(1), US = vpmu::bit(2);

std::uint64_t entry_of(PagingAccess access, PagingPrivilege privilege) {
  const std::uint64_t page = privilege == PagingPrivilege::user ? user_code : supervisor_code;
  return page + 0x10 * static_cast<std::uint64_t>(access);
}

template <std::size_t N>
void poke_bytes(FlatRam& ram, std::uint64_t at, const std::array<std::uint8_t, N>& bytes) {
  for (const std::uint8_t byte : bytes) ram.poke(at++, byte);
}

}  // namespace

AccessGuest::AccessGuest(PagingVm& vm, std::vector<GuestTableLevel> levels, unsigned entry_bytes)
    : vm_{vm}, levels_{std::move(levels)}, entry_bytes_{entry_bytes} {
  map_own_pages();
  write_code();
}

vpmu::GuestLinear AccessGuest::linear() const { return vpmu::GuestLinear{vpmu::bit(levels_.front().shift) | target}; }

std::uint64_t AccessGuest::entry_at(std::size_t level) const {
  const auto& l = levels_.at(level);
  const std::uint64_t table = tables_ + level * page_size;
  return table + ((linear().value() >> l.shift) & vpmu::low_bits(l.index_bits)) * entry_bytes_;
}

std::uint64_t AccessGuest::frame_of(std::size_t level) const {
  return level + 1 == depth() ? target & ~(page_size - 1) : tables_ + (level + 1) * page_size;
}

void AccessGuest::poke_entry(std::uint64_t at, std::uint64_t word) {
  if (entry_bytes_ == 4) {
    vm_.ram.poke(at, static_cast<std::uint32_t>(word));
  } else {
    vm_.ram.poke(at, word);
  }
}

void AccessGuest::set_entry(std::size_t level, std::uint64_t word) { poke_entry(entry_at(level), word); }

std::uint64_t AccessGuest::entry(std::size_t level) const {
  return entry_bytes_ == 4 ? vm_.ram.peek<std::uint32_t>(entry_at(level))
                           : vm_.ram.peek<std::uint64_t>(entry_at(level));
}

void AccessGuest::begin_case() {
  tables_ += depth() * page_size;
  poke_entry(tables_, (own_tables + page_size) | P | (has_pae_root() ? 0 : RW | US));
}

void AccessGuest::map_own_pages() {
  for (std::size_t level = 1; level + 1 < depth(); ++level) {
    poke_entry(own_tables + level * page_size, (own_tables + (level + 1) * page_size) | P | RW | US);
  }
  const std::uint64_t last = own_tables + (depth() - 1) * page_size;
  for (std::uint64_t page = 0; page <= user_code; page += page_size) {
    poke_entry(last + page / page_size * entry_bytes_, page | P | RW | (page == user_code ? US : 0));
  }
}

void AccessGuest::write_code() {
  constexpr std::array<std::uint8_t, 2> reached{0xe6, reached_port};            // out reached_port, al
  constexpr std::array<std::uint8_t, 4> load{0x8a, 0x03, 0xe6, reached_port};   // mov al, [rbx]; out
  constexpr std::array<std::uint8_t, 4> store{0x88, 0x03, 0xe6, reached_port};  // mov [rbx], al; out
  constexpr std::array<std::uint8_t, 2> jump{0xff, 0xe3};                       // jmp rbx
  for (const auto privilege : {PagingPrivilege::supervisor, PagingPrivilege::user}) {
    poke_bytes(vm_.ram, entry_of(PagingAccess::read, privilege), load);
    poke_bytes(vm_.ram, entry_of(PagingAccess::write, privilege), store);
    poke_bytes(vm_.ram, entry_of(PagingAccess::execute, privilege), jump);
  }
  poke_bytes(vm_.ram, fault_handler, std::array<std::uint8_t, 2>{0xe6, fault_port});
  poke_bytes(vm_.ram, target, reached);
}

// SDM 3A 3.4.5, 6.11, 6.14.1, 7.2.1, 7.7.
void AccessGuest::write_descriptors(bool is_long) {
  const std::uint64_t width = is_long ? 0x00af'0000'0000'0000 : 0x00cf'0000'0000'0000;
  vm_.ram.poke(gdt + 0x08, 0x0000'9b00'0000'ffff | width);
  vm_.ram.poke(gdt + 0x10, std::uint64_t{0x00cf'9300'0000'ffff});
  vm_.ram.poke(gdt + 0x18, 0x0000'fb00'0000'ffff | width);
  vm_.ram.poke(gdt + 0x20, std::uint64_t{0x00cf'f300'0000'ffff});
  vm_.ram.poke(tss + 4, stack_top);                          // RSP0; ESP0 in 32-bit mode.
  if (!is_long) vm_.ram.poke(tss + 8, std::uint32_t{0x10});  // SS0.
  const std::uint64_t gate = (fault_handler & 0xffff) | (0x08ULL << 16) | (0x8e00ULL << 32);
  vm_.ram.poke(idt + x86::vector::PF * (is_long ? 16 : 8), gate);
  if (is_long) vm_.ram.poke(idt + x86::vector::PF * 16 + 8, std::uint64_t{0});
}

Result<void> AccessGuest::load(const vpmu::PagingState& state, PagingAccess access, PagingPrivilege privilege) {
  VMM_TRY(vm_.load(state, privilege));
  VMM_ASSIGN(kvm_sregs sregs, vm_.vcpu.sregs());
  sregs.gdt.base = gdt;
  sregs.gdt.limit = 0x27;
  sregs.idt.base = idt;
  sregs.idt.limit = 0xfff;
  sregs.tr.base = tss;
  sregs.tr.limit = 0x67;
  // VMX takes a busy TSS only. AMD does not look and kvm_amd adds the busy bit itself; QEMU, emulating AMD, aborts on a
  // busy 32-bit one.
  sregs.tr.type = vm_.features.is_amd_host ? 0x9 : 0xb;
  sregs.tr.present = 1;
  sregs.tr.s = 0;
  VMM_TRY(vm_.vcpu.set_sregs(sregs));
  kvm_regs regs{};
  regs.rip = entry_of(access, privilege);
  regs.rsp = stack_top;
  regs.rbx = linear().value();
  regs.rax = vm_.ram.peek<std::uint8_t>(target);
  regs.rflags = x86::rflags::fixed | x86::rflags::IOPL::mask | (state.alignment_check ? x86::rflags::AC::mask : 0);
  VMM_TRY(vm_.vcpu.set_regs(regs));
  return vm_.vcpu.flush();
}

Result<AccessOutcome> AccessGuest::run(const vpmu::PagingState& state, PagingAccess access, PagingPrivilege privilege) {
  write_descriptors((state.efer & vpmu::bit(8)) != 0);
  VMM_TRY(load(state, access, privilege));
  VMM_ASSIGN(const Exit exit, vm_.vcpu.run());
  const auto* out = std::get_if<PortWrite>(&exit);
  if (out == nullptr) return host_error("the guest stopped otherwise, exit kind " + std::to_string(exit.index()));
  const std::uint16_t port = out->port;
  VMM_TRY(vm_.vcpu.complete_exit());
  if (port == reached_port) return AccessOutcome{};
  VMM_ASSIGN(const kvm_sregs sregs, vm_.vcpu.sregs());
  VMM_ASSIGN(const kvm_regs regs, vm_.vcpu.regs());
  return AccessOutcome{.faulted = true, .cr2 = sregs.cr2, .error_code = vm_.ram.peek<std::uint32_t>(regs.rsp)};
}

}  // namespace vmm::test
