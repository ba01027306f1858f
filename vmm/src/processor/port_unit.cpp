#include "processor/port_unit.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "processor/far_transfer.hpp"
#include "processor/system_operands.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

/// Adds to a register that is as long as addresses are. SDM 2A INS, 2B REP.
void add_to(__u64& to, std::uint64_t value, unsigned address_bytes) {
  const std::uint64_t sum = (to + value) & vpmu::low_bits(8 * address_bytes);
  to = address_bytes == 2 ? (to & ~vpmu::low_bits(16)) | sum : sum;
}

}  // namespace

// SDM 1 18.5.2: the bits of all ports of the access must be clear. Two bytes of the map are read, whatever the port is,
// and both must be within the TSS.
std::optional<Exception> PortUnit::permission_fault(std::uint16_t port, std::uint8_t bytes) {
  constexpr std::uint64_t base_at = 102;
  constexpr unsigned task = 9, busy = 2;  // a TSS of 16 bits has no map
  if (is_real_mode(s_->sregs) || cpl_of(s_->sregs) <= (s_->regs.rflags & x86::rflags::IOPL::mask) >> 12)
    return std::nullopt;
  const kvm_segment& tss = s_->sregs.tr;
  std::uint16_t base{}, bits{};
  if ((tss.type & ~busy) != task || tss.limit < base_at + sizeof base - 1) return general_protection;
  const auto read = [&](std::uint64_t at, std::uint16_t& to) {
    const auto fault = view_->read(vpmu::GuestLinear{tss.base + at}, std::as_writable_bytes(std::span{&to, 1}));
    return fault ? std::optional{page_fault(*s_, *fault)} : std::nullopt;
  };
  if (const auto fault = read(base_at, base)) return fault;
  const std::uint64_t at = base + port / 8U;
  if (at + sizeof bits - 1 > tss.limit) return general_protection;
  if (const auto fault = read(at, bits)) return fault;
  return (bits >> port % 8U & vpmu::low_bits(bytes)) == 0 ? std::nullopt : std::optional{general_protection};
}

SystemResult PortUnit::begin(const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  PortAccess access{.port = static_cast<std::uint16_t>(i.by_dx ? s_->regs.rdx : i.immediate),
                    .bytes = i.bytes,
                    .write = i.op == SystemOp::out || i.op == SystemOp::outs,
                    .value = static_cast<std::uint32_t>(s_->regs.rax),
                    .element = std::nullopt};
  const bool of_string = i.op == SystemOp::ins || i.op == SystemOp::outs;
  if (of_string && i.rep && (s_->regs.rcx & vpmu::low_bits(8U * i.address_bytes)) == 0) return Completed{};
  if (const auto fault = permission_fault(access.port, access.bytes)) return Raised{*fault};
  if (!of_string) return access;
  access.element = {.at = operand.value_or(0), .address_bytes = i.address_bytes, .repeats = i.rep};
  if (const auto fault = fetch_element(access)) return Raised{*fault};
  return access;
}

/// The memory of INS and OUTS, before the device is asked.
std::optional<Exception> PortUnit::fetch_element(PortAccess& access) {
  const vpmu::GuestLinear at{access.element->at};
  const auto fault =
      access.write ? view_->read_current(at, std::as_writable_bytes(std::span{&access.value, 1}).first(access.bytes))
                   : write_fault(*view_, at, access.bytes);
  return fault ? std::optional{page_fault(*s_, *fault)} : std::nullopt;
}

// SDM 2A IN, INS, 2B OUTS, REP.
PortUnit::End PortUnit::complete(const PortAccess& access, std::uint32_t value) {
  const auto bytes = std::as_bytes(std::span{&value, 1}).first(access.bytes);
  kvm_regs& r = s_->regs;
  if (!access.element) {
    if (access.write) return {};
    if (access.bytes == sizeof value) r.rax = 0;
    std::memcpy(&r.rax, bytes.data(), bytes.size());
    return {};
  }
  const PortAccess::Element& e = *access.element;
  if (!access.write)
    if (const auto fault = view_->write_current(vpmu::GuestLinear{e.at}, bytes))
      return {.fault = page_fault(*s_, *fault), .again = false};
  const bool down = x86::rflags::DF::test(r.rflags);
  add_to(access.write ? r.rsi : r.rdi, down ? 0 - std::uint64_t{access.bytes} : access.bytes, e.address_bytes);
  if (!e.repeats) return {};
  add_to(r.rcx, ~std::uint64_t{0}, e.address_bytes);
  return {.fault = std::nullopt, .again = (r.rcx & vpmu::low_bits(8U * e.address_bytes)) != 0};
}

}  // namespace vmm
