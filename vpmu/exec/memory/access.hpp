#pragma once
#include <cstring>

#include "exec/state/core.hpp"

namespace vpmu::exec {

/// The host address of `bytes` at `at` for an access of that kind, filling the TLB; null when the engine must stop,
/// Core::stop saying why. The bytes must lie in one page; an observer is told of them, unless `bytes` is 0.
std::byte* find_slow_path(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes);
/// The same while there is an observer: observe/tap.cpp, which notes the access.
std::byte* find_tapped(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes);
/// The same from the page tables, for one byte; an observer is not told.
std::byte* find_in_tables(Core* c, Rights rights, std::uint64_t at, PagingAccess access);
/// The bytes on both sides of a page boundary, together in Core::operand; null as above.
/// By value both ways: an op that passes out the address of a variable could not end in a tail call.
const std::byte* load_across(Core* c, std::uint64_t at, unsigned bytes);
/// Stores the low `bytes` of `value` across a page boundary; false as above, and then nothing has been written.
bool store_across(Core* c, std::uint64_t at, std::uint64_t value, unsigned bytes);

/// Whether the TLB knows the page of `bytes` at `at` for the access.
VPMU_PART_OF_OP bool can_read_fast(const Core* c, std::uint64_t at, std::uint64_t bytes) {
  return is_tagged(c->tlb->read[tlb_place(at)], at, bytes);
}
VPMU_PART_OF_OP bool can_write_fast(const Core* c, std::uint64_t at, std::uint64_t bytes) {
  return is_tagged(c->tlb->write[tlb_place(at)], at, bytes);
}
VPMU_PART_OF_OP std::byte* host_address(std::uint64_t at, std::uint64_t add) {
  return reinterpret_cast<std::byte*>(at + add);  // NOLINT(performance-no-int-to-ptr)
}
VPMU_PART_OF_OP std::byte* known_address(const Core* c, std::uint64_t at) {
  return host_address(at, c->tlb->add[tlb_place(at)]);
}

/// The host address of a T, if the TLB knows it for the access; else null.
template <class T>
VPMU_PART_OF_OP const std::byte* read_fast(Core* c, std::uint64_t at) {
  return can_read_fast(c, at, sizeof(T)) ? known_address(c, at) : nullptr;
}
template <class T>
VPMU_PART_OF_OP std::byte* write_fast(Core* c, std::uint64_t at) {
  return can_write_fast(c, at, sizeof(T)) ? known_address(c, at) : nullptr;
}
template <class T>
VPMU_PART_OF_OP T value_at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// The host address of a T for reading and writing, or null. Only where it lies in one page.
template <class T>
std::byte* find_to_change(Core* c, std::uint64_t at) {
  if (can_write_fast(c, at, sizeof(T))) [[likely]]
    return known_address(c, at);
  return find_slow_path(c, at, PagingAccess::write, sizeof(T));
}

constexpr bool crosses_page(std::uint64_t at, std::uint64_t bytes) {
  return at / page_size != (at + bytes - 1) / page_size;
}

/// Reads a T of the guest's memory. False: the instruction must stop here (Core::stop), nothing has changed.
template <class T>
[[nodiscard]] bool load(Core* c, std::uint64_t at, T& value) {
  const std::byte* from = nullptr;
  if (can_read_fast(c, at, sizeof(T))) [[likely]] {
    from = known_address(c, at);
  } else {
    from = crosses_page(at, sizeof(T)) ? load_across(c, at, sizeof value)
                                       : find_slow_path(c, at, PagingAccess::read, sizeof value);
    if (from == nullptr) return false;
  }
  std::memcpy(&value, from, sizeof value);
  return true;
}

template <class T>
[[nodiscard]] bool store(Core* c, std::uint64_t at, T value) {
  if (crosses_page(at, sizeof(T))) [[unlikely]]
    return store_across(c, at, value, sizeof value);
  std::byte* const to = find_to_change<T>(c, at);
  if (to == nullptr) [[unlikely]]
    return false;
  std::memcpy(to, &value, sizeof value);
  return true;
}

/// Makes sure that a T can be stored at `at`, for an instruction that changes something before it stores. If it lies in
/// two pages, Core::missing names the first byte of the second one if only that is missing, as CR2 would. SDM 3A 4.7.
template <class T>
[[nodiscard]] bool can_store(Core* c, std::uint64_t at) {
  if (can_write_fast(c, at, sizeof(T))) [[likely]]
    return true;
  const std::uint64_t last = at + sizeof(T) - 1;
  return find_slow_path(c, at, PagingAccess::write, 0) != nullptr &&
         (!crosses_page(at, sizeof(T)) ||
          find_slow_path(c, last - last % page_size, PagingAccess::write, 0) != nullptr);
}

/// Lets no other block begin in the present run().
void cut_short(Core* c);
/// Called after whatever takes much longer than an instruction.
inline void look_at_kick(Core* c) {
  if (c->kick.is_set()) [[unlikely]]
    cut_short(c);
}

/// Forgets all translations of the present address space.
void flush_tlb(Core* c);
/// CR0.WP has changed: forgets where the guest may write, in all address spaces.
void forget_writes(Core* c);
/// Forgets the translation of one page.
void forget_page(Core* c, std::uint64_t at);
inline Rights rights_of(const Core& c) {
  return c.cpl == 3 ? Rights::user : c.paging.alignment_check ? Rights::supervisor_ac : Rights::supervisor;
}
/// What an observer is told of the page that maps the linear address `at`.
inline SeenPage seen_page(const Mapped& mapped, std::uint64_t at) {
  return {.physical = mapped.address.value() - at % page_size,
          .page_bytes = static_cast<std::uint32_t>(mapped.page_bytes),
          .global = mapped.global};
}
/// Selects the TLB for the present privilege level and RFLAGS.AC.
void choose_tlb(Core* c);

}  // namespace vpmu::exec
