#pragma once
#include <span>

#include "exec/observe/tap.hpp"

/// What tap.cpp, which notes what ops do, and tap_log.cpp, for compiled code, share.
namespace vpmu::exec {

/// Tells the observer of all entries before `end`.
void tell_before(Tap& t, unsigned end);
/// Makes room for all quick notes of a block, and more.
void make_room(Tap& t);
/// Instructions that retire before the block that began last, whose counts have been subtracted.
std::uint64_t retired_before_block(const Core& core);
/// The block begins after `at_entry` instructions, and all of it is going to run.
void note_beginning(Tap& t, const Block& block, std::uint64_t at_entry);
/// Notes the op's access, if it makes one at a place that the TLB knows; else false.
bool note_if_fast(const Op* op, Core* c);
/// An op whose accesses find_tapped() notes.
void begin_op(Core& c, const Op& op, std::uint64_t now);

inline std::size_t index_of(const Op* op, const Core* c) {
  return static_cast<std::size_t>(op - c->block->ops().data());
}
inline std::size_t rights_in(const Tlb* tlb, const Core& c) { return static_cast<std::size_t>(tlb - c.tlbs.data()); }
inline std::uint8_t global_flag(const SeenPage& page) { return page.global ? Seen::global : 0; }
/// An access to one page, which the TLB `rights` knows.
inline Seen::Access access_of(const Tap& t, std::size_t rights, std::uint64_t at, std::uint64_t bytes,
                              std::uint64_t now) {
  const SeenPage& page = t.pages[rights][tlb_place(at)];
  return {.flags = global_flag(page),
          .bytes = static_cast<std::uint16_t>(bytes),
          .page_bytes = page.page_bytes,
          .linear = at,
          .physical = page.physical + at % page_size,
          .now = now};
}

}  // namespace vpmu::exec
