// Handles the instructions at which the engine stops, and runs instructions while breakpoints or single-steps are in
// force.
#include <algorithm>
#include <cstring>

#include "boot/layout.hpp"
#include "decode/instruction.hpp"
#include "exec/host_form.hpp"
#include "soft/soft_port.hpp"
#include "sources/retired_instruction.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

constexpr std::uint64_t rflags_rf = vpmu::bit(16);
constexpr std::uint64_t dr6_fixed = 0xFFFF'0FF0, dr6_bs = vpmu::bit(14);

/// KVM's report of an instruction that it cannot emulate: a flag that its bytes follow, their number, and the bytes.
InternalError not_emulated(std::span<const std::byte> code) {
  InternalError error{.suberror = KVM_INTERNAL_ERROR_EMULATION,
                      .data = {KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES}};
  const auto out = std::as_writable_bytes(std::span{error.data}).subspan(sizeof error.data[0]);
  out[0] = static_cast<std::byte>(code.size());
  std::ranges::copy(code, out.begin() + 1);
  return error;
}

vpmu::GuestPhysical page_of(vpmu::GuestPhysical at) { return vpmu::GuestPhysical{at.value() & ~(vpmu::page_size - 1)}; }

}  // namespace

std::optional<Exit> SoftPort::run_what_the_engine_left(Stop why) {
  std::array<std::byte, longest_instruction> bytes{};
  const std::size_t size = view_.fetch(instruction_pointer(s_.regs, s_.sregs), bytes, cpl_of(s_.sregs));
  const auto code = std::span{bytes}.first(size);
  const auto i = decode_instruction(code, code_mode(s_.sregs));
  if (i && i->system) {
    std::optional<std::uint64_t> operand;
    if (i->load || i->store)
      operand = operand_address(i->store ? *i->store : *i->load, *i, instruction_pointer(s_.regs, s_.sregs), s_.regs,
                                s_.sregs)
                    .value();
    return run_system(*i->system, operand);
  }
  return run_into_fault(i, code, why);
}

/// The addresses of a gather's elements; `base` is its operand's address without an index.
std::vector<Access> SoftPort::gathered(const Gather& g, std::uint64_t base, unsigned scale) const {
  const auto element = [&](unsigned number, std::size_t at, std::size_t bytes) {
    constexpr std::size_t half = 16;
    const std::byte* const from = at < half
                                      ? s_.vectors.legacy.data() + vpmu::exec::VectorState::xmm_at + half * number + at
                                      : s_.vectors.upper[number].data() + (at - half);
    std::uint64_t value{};
    std::memcpy(&value, from, bytes);
    return bytes == 8 ? static_cast<std::int64_t>(value) : std::int64_t{static_cast<std::int32_t>(value)};
  };
  std::vector<Access> all;
  for (std::size_t n = 0; n < g.count; ++n)
    if (element(g.mask, n * g.element, g.element) < 0)
      all.push_back(
          {.at = base + scale * static_cast<std::uint64_t>(element(g.index, n * g.index_element, g.index_element)),
           .bytes = g.element});
  return all;
}

std::vector<Access> SoftPort::accesses(const Instruction& i) const {
  std::vector<Access> all;
  if (i.gather && i.load)
    return gathered(*i.gather,
                    operand_address(*i.load, i, instruction_pointer(s_.regs, s_.sregs), s_.regs, s_.sregs).value(),
                    i.load->scale);
  const auto add = [&](const std::optional<MemoryOperand>& m, bool write) {
    if (!m) return;
    constexpr std::int8_t rsp = 4, rbp = 5;
    const auto at = operand_address(*m, i, instruction_pointer(s_.regs, s_.sregs), s_.regs, s_.sregs);
    const bool stack = (m->base == rsp || m->base == rbp) && m->segment < 0;
    all.push_back({.at = at.value(), .bytes = std::max<std::uint16_t>(m->bytes, 1), .write = write, .stack = stack});
  };
  add(i.read(), false);
  add(i.store, true);
  return all;
}

/// The access that failed, for an instruction whose operands do not determine its accesses; otherwise all its accesses.
std::vector<Access> SoftPort::reached(const Instruction& i) const {
  if (!i.partial) return accesses(i);
  const auto& missing = engine_.missing();
  if (!missing) return {};
  return {{.at = missing->at, .bytes = 1, .write = missing->write, .stack = false}};
}

// SDM 2A tables 2-15 to 2-28, SDM 3A 2.5, 13.1: the conditions of #UD and #NM that do not depend on operands.
std::optional<Exception> SoftPort::feature_fault(const Instruction& i, std::span<const std::byte> code) const {
  using vpmu::exec::CpuFeature;
  using vpmu::exec::VectorUnit;
  constexpr Exception ud{.vector = vector_ud, .error_code = std::nullopt};
  constexpr Exception nm{.vector = vector_nm, .error_code = std::nullopt};
  constexpr std::uint64_t em = vpmu::bit(2), ts = vpmu::bit(3), osfxsr = vpmu::bit(9), osxsave = vpmu::bit(18);
  constexpr std::uint64_t sse_and_avx = vpmu::exec::VectorState::sse | vpmu::exec::VectorState::avx;
  const CodeMode mode = code_mode(s_.sregs);
  const auto feature = vpmu::exec::feature_needed(code, mode);
  if (i.never_there || (feature && !features_.has(*feature))) return ud;
  const std::uint64_t cr0 = s_.sregs.cr0, cr4 = s_.sregs.cr4;
  const VectorUnit unit = vpmu::exec::unit_needed(code, mode);
  switch (unit) {
    case VectorUnit::none: return std::nullopt;
    case VectorUnit::x87:
      if ((cr0 & (em | ts)) != 0) return nm;
      return std::nullopt;
    case VectorUnit::sse:
      if ((cr0 & em) != 0 || (cr4 & osfxsr) == 0) return ud;
      break;
    case VectorUnit::avx:
      if ((cr4 & osxsave) == 0 || (s_.vectors.xcr0 & sse_and_avx) != sse_and_avx) return ud;
      break;
    case VectorUnit::xsave:
      if ((cr4 & osxsave) == 0) return ud;
      break;
  }
  if ((cr0 & ts) != 0) return nm;
  return std::nullopt;
}

// The engine stops before a fault and does not give its reason: check the reasons in the order of SDM 3A table 6-2.
std::optional<Exit> SoftPort::run_into_fault(const std::optional<Instruction>& i, std::span<const std::byte> code,
                                             Stop why) {
  if (!i) {
    if (code.size() < longest_instruction)
      return take(fetch_fault(instruction_pointer(s_.regs, s_.sregs).value() + code.size()), EventKind::fault);
    return take({.vector = vector_ud, .error_code = std::nullopt}, EventKind::fault);
  }
  if (cpl_of(s_.sregs) != 0 && i->privileged) return take(general_protection, EventKind::fault);
  // An instruction that has tried to access memory exists and is enabled.
  if (!engine_.missing())
    if (const auto fault = feature_fault(*i, code)) return take(*fault, EventKind::fault);
  for (const Access& access : reached(*i)) {
    if (!vpmu::is_canonical(access.at, 48) || !vpmu::is_canonical(access.at + access.bytes - 1, 48))
      return take(access.stack ? stack_fault : general_protection, EventKind::fault);
    const auto kind = access.write ? vpmu::AccessKind::write : vpmu::AccessKind::read;
    const auto fault = view_.probe_current(vpmu::GuestLinear{access.at}, access.bytes, kind);
    if (!fault) continue;
    if (fault->not_memory) return access_device(access, *i, code);
    return take(page_fault(s_, *fault), EventKind::fault);
  }
  if (i->raises == Raises::division) return take({.vector = vector_de, .error_code = std::nullopt}, EventKind::fault);
  if (i->branch != vpmu::BranchKind::none) return take(general_protection, EventKind::fault);
  return refuse(*i, code, why);
}

// A user program must not end the machine with an instruction that is not supported. A kernel that uses an unsupported
// privileged one cannot continue.
std::optional<Exit> SoftPort::refuse(const Instruction& i, std::span<const std::byte> code, Stop why) {
  if (why == Stop::fault) return take(general_protection, EventKind::fault);  // a misaligned operand, or reserved bits
  if (++statistics_.unknown[i.mnemonic] == 1 && log_ != nullptr)
    log_->warning("{} at {:#x} cannot run without KVM: the guest gets #UD; run it with --accel kvm", i.mnemonic,
                  s_.regs.rip);
  if (i.privileged) return Exit{not_emulated(code)};
  return take({.vector = vector_ud, .error_code = std::nullopt}, EventKind::fault);
}

Exception SoftPort::fetch_fault(std::uint64_t at) {
  const auto privilege = cpl_of(s_.sregs) == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
  const vpmu::Walk walk = vpmu::translate(paging_state(s_.sregs, s_.regs), memory_->physical(), vpmu::GuestLinear{at},
                                          vpmu::PagingAccess::execute, privilege, vpmu::AccessedDirty::leave);
  const auto* fault = std::get_if<vpmu::PageFault>(&walk);
  if (fault == nullptr) return general_protection;
  return page_fault(s_, {.address = vpmu::GuestLinear{at}, .error_code = fault->error_code});
}

// Lets the engine run the instruction on a scratch page in place of the device's.
std::optional<Exit> SoftPort::access_device(const Access& access, const Instruction& i,
                                            std::span<const std::byte> code) {
  const auto privilege = cpl_of(s_.sregs) == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
  const auto kind = access.write ? vpmu::PagingAccess::write : vpmu::PagingAccess::read;
  const vpmu::Walk walk = vpmu::translate(paging_state(s_.sregs, s_.regs), memory_->physical(),
                                          vpmu::GuestLinear{access.at}, kind, privilege, vpmu::AccessedDirty::leave);
  const auto* mapped = std::get_if<vpmu::Mapped>(&walk);
  const vpmu::GuestPhysical at = mapped == nullptr ? vpmu::GuestPhysical{~0ULL} : mapped->address;
  const Device device = device_at(page_of(at));
  constexpr std::size_t longest = 8;  // the most that a device is asked for at a time; the rest of a wider access is
                                      // all ones
  const auto offset = static_cast<std::size_t>(access.at % vpmu::page_size);
  const auto touched = std::span{ram_.scratch}.subspan(offset).first(
      std::min({std::size_t{access.bytes}, longest, ram_.scratch.size() - offset}));
  ram_.scratch.fill(std::byte{0xFF});
  if (!access.write || device != Device::others) read_device(device, at, touched);
  const std::uint64_t retired = statistics_.instructions;
  ram_.open = true;
  const Stop why = run_engine(1);
  ram_.open = false;
  flush_ = true;  // drop the translation to the scratch page
  ++statistics_.mmio;
  if (statistics_.instructions == retired) return why == Stop::again ? std::nullopt : refuse(i, code, why);
  if (access.write) write_device(device, at, touched);
  return std::nullopt;
}

SoftPort::Device SoftPort::device_at(vpmu::GuestPhysical page) const {
  const std::uint64_t base = s_.sregs.apic_base;
  const bool apic =
      (base & (apic_base_enabled | apic_base_extd)) == apic_base_enabled && page.value() == (base & apic_base_address);
  if (apic) return Device::local_apic;
  return interrupts_.io_apic() != nullptr && page == layout::io_apic ? Device::io_apic : Device::others;
}

// The APICs' registers have four bytes. SDM 3A 10.4.1.
void SoftPort::read_device(Device device, vpmu::GuestPhysical at, std::span<std::byte> out) {
  const auto offset = static_cast<std::uint32_t>(at.value() % vpmu::page_size);
  std::uint32_t value = 0;
  switch (device) {
    case Device::others:
      if (devices_ != nullptr) devices_->mmio_read(at, out);
      return;
    case Device::local_apic: value = interrupts_.read(offset); break;
    case Device::io_apic: value = interrupts_.io_apic()->read(offset); break;
  }
  std::memcpy(out.data(), &value, std::min(out.size(), sizeof value));
}

void SoftPort::write_device(Device device, vpmu::GuestPhysical at, std::span<const std::byte> in) {
  const auto offset = static_cast<std::uint32_t>(at.value() % vpmu::page_size);
  std::uint32_t value = 0;
  std::memcpy(&value, in.data(), std::min(in.size(), sizeof value));
  switch (device) {
    case Device::others:
      if (devices_ != nullptr) devices_->mmio_write(at, in);
      return;
    case Device::local_apic: return interrupts_.write(offset, value);
    case Device::io_apic: return interrupts_.io_apic()->write(offset, value);
  }
}

std::optional<Exit> SoftPort::run_watched(const Watch& w) {
  if ((s_.regs.rflags & rflags_rf) == 0)
    if (const std::uint64_t hits = execution_hits(w, instruction_pointer(s_.regs, s_.sregs).value()); hits != 0)
      return debug_hit(w, hits);
  std::array<std::byte, longest_instruction> bytes{};
  const std::size_t size = view_.fetch(instruction_pointer(s_.regs, s_.sregs), bytes, cpl_of(s_.sregs));
  const auto code = std::span{bytes}.first(size);
  const auto i = decode_instruction(code, code_mode(s_.sregs));
  const auto touched = i ? accesses(*i) : std::vector<Access>{};
  const std::uint64_t before = statistics_.instructions, exceptions = statistics_.exceptions;
  const std::uint64_t next = s_.regs.rip + (i ? i->length : 0U);
  std::uint64_t hits = std::exchange(held_hits_, 0);
  if (auto exit = i && i->rep && w.guest_step ? run_iteration(*i) : run_some(1)) {
    open_.trap = w.guest_step && !w.host_step;
    return exit;
  }
  if (statistics_.exceptions != exceptions) {
    // INT1, and MOV to or from a debug register with DR7.GD, raise #DB themselves: it also reports the hits.
    if (took_debug_ && !w.to_host) {
      s_.debug.dr6 |= hits;
      return std::nullopt;
    }
    // The host's single-step over an instruction that faults ends at the handler.
    if (w.host_step) hits |= dr6_bs;
    return hits == 0 ? std::nullopt : debug_hit(w, hits);
  }
  if (statistics_.instructions == before) return std::nullopt;
  hits |= data_hits(w, touched);
  if (s_.events.interrupt.shadow == KVM_X86_SHADOW_INT_MOV_SS && !w.host_step) {
    held_hits_ = hits;
    return std::nullopt;
  }
  if (w.host_step || (guest_traps(w, i) && (!branch_steps_ || s_.regs.rip != next))) hits |= dr6_bs;
  return hits == 0 ? std::nullopt : debug_hit(w, hits);
}

// By TF before the instruction; SYSCALL and SYSRET trap by TF after them.
bool SoftPort::guest_traps(const Watch& w, const std::optional<Instruction>& i) const {
  constexpr std::uint64_t rflags_tf = vpmu::bit(8);
  const bool late = i && (i->is(SystemOp::syscall) || i->is(SystemOp::sysret));
  return late ? (s_.regs.rflags & rflags_tf) != 0 : w.guest_step;
}

// One iteration of a repeated string instruction: a guest that single-steps itself has a trap after each. The address
// size determines the width of the count. SDM 3B 17.3.1.4; SDM 2B REP.
std::optional<Exit> SoftPort::run_iteration(const Instruction& i) {
  constexpr std::uint64_t rflags_zf = vpmu::bit(6);
  const unsigned address_bytes = i.load ? i.load->address_bytes : i.store ? i.store->address_bytes : 8;
  const std::uint64_t counted = vpmu::low_bits(8 * address_bytes);
  const std::uint64_t count = s_.regs.rcx & counted;
  if (count <= 1) return run_some(1);
  const std::uint64_t at = s_.regs.rip, done = statistics_.instructions;
  const std::uint64_t beyond = address_bytes == 2 ? s_.regs.rcx & ~counted : 0;
  s_.regs.rcx = beyond | 1;
  stale_ = true;
  auto exit = run_some(1);
  stale_ = true;
  if (statistics_.instructions == done) {
    s_.regs.rcx = beyond | count;
    return exit;
  }
  s_.regs.rcx = beyond | (count - 1);
  const bool equal = (s_.regs.rflags & rflags_zf) != 0;
  if (i.early_end != (equal ? EarlyEnd::equality : EarlyEnd::difference)) s_.regs.rip = at;
  return exit;
}

// The frame of an instruction breakpoint has RF unchanged. SDM 3A 2.3.
std::optional<Exit> SoftPort::debug_hit(const Watch& w, std::uint64_t hits) {
  if (w.to_host) return Exit{Debug{.exception = vector_db, .pc = s_.regs.rip, .dr6 = dr6_fixed | hits, .dr7 = w.dr7}};
  constexpr std::uint64_t matches = 0xF;
  s_.debug.dr6 = (s_.debug.dr6 & ~matches) | hits;
  branch_steps_ = false;  // SDM 3B 17.4.3: #DB clears BTF
  return take({.vector = vector_db, .error_code = std::nullopt}, EventKind::trap);
}

}  // namespace vmm
