#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <sstream>
#include <string>

#include "../paging_tables.hpp"
#include "paging_model.hpp"
#include "vpmu/paging.hpp"

// Random page tables in a few pages of RAM: our page walk and a naive model from the manual must agree on the outcome
// and on every byte of the tables afterwards.

namespace vpmu::test {
namespace {

constexpr std::uint64_t pages = 6;

/// A random machine and one access on it.
struct Scene {
  PagingState state;
  std::array<std::uint64_t, pages> words{};  ///< Every entry of page i is words[i], so that any index finds one.
  std::uint64_t at{};
  PagingAccess access{};
  PagingPrivilege privilege{};
  AccessedDirty accessed_dirty{};
};

/// True once in `n` draws.
rc::Gen<bool> rarely(int n) {
  return rc::gen::map(rc::gen::inRange(0, n), [](int draw) { return draw == 0; });
}

std::uint64_t random_control(std::initializer_list<std::uint64_t> bits) {
  std::uint64_t word = 0;
  for (const std::uint64_t b : bits) word |= *rc::gen::arbitrary<bool>() ? b : 0;
  return word;
}

/// Mostly a present entry that points into RAM, sometimes with one more bit, or anything at all.
std::uint64_t random_entry() {
  if (*rarely(30)) return *rc::gen::arbitrary<std::uint64_t>();
  std::uint64_t word = *rc::gen::inRange<std::uint64_t>(0, pages) * page_size;
  word |= P | (*rarely(6) ? 0 : RW) | (*rarely(4) ? 0 : US) | (*rarely(4) ? PS : 0) | (*rarely(8) ? XD : 0);
  word |= random_control({A, D});
  if ((word & PS) != 0 && *rc::gen::arbitrary<bool>()) word &= ~Bits<29, 13>::mask;  // A frame that may be aligned.
  if (*rarely(4)) word ^= bit(*rc::gen::inRange(0U, 64U));
  return word;
}

PagingState random_state() {
  PagingState state;
  const bool is_long = *rc::gen::arbitrary<bool>();
  state.cr0 = PE | (*rarely(50) ? 0 : PG) | random_control({WP});
  state.cr4 = random_control({PSE, PAE, LA57, SMEP, SMAP}) | (is_long ? PAE : 0);
  state.efer = (*rarely(3) ? 0 : NXE) | (is_long ? LME | LMA : 0);
  state.cr3 = *rc::gen::inRange<std::uint64_t>(0, pages) * page_size + (*rarely(8) ? 0x20 : 0);
  state.physical_width = *rc::gen::inRange<std::uint8_t>(32, 53);
  state.alignment_check = *rc::gen::arbitrary<bool>();
  state.gigabyte_pages = !*rarely(4);
  return state;
}

/// An address whose top bits are mostly, but not always, copies of bit 47 or 56.
std::uint64_t random_linear() {
  const auto raw = *rc::gen::arbitrary<std::int64_t>();
  const int excess = *rc::gen::inRange(6, 18);
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::uint64_t>(raw) << excess) >> excess);
}

Scene random_scene() {
  Scene scene{.state = random_state()};
  for (auto& word : scene.words) word = random_entry();
  const bool is_pae = (scene.state.cr4 & PAE) != 0 && (scene.state.efer & LME) == 0;
  auto& root = scene.words.at(scene.state.cr3 / page_size);
  if (is_pae && !*rarely(10)) root &= Bits<38, 12>::mask | P;  // Most other bits of a PDPTE are reserved.
  scene.at = random_linear();
  scene.access = *rc::gen::element(PagingAccess::read, PagingAccess::write, PagingAccess::execute);
  scene.privilege = *rc::gen::element(PagingPrivilege::supervisor, PagingPrivilege::user);
  scene.accessed_dirty = *rc::gen::element(AccessedDirty::leave, AccessedDirty::set);
  return scene;
}

TableMemory memory_of(const Scene& scene) {
  TableMemory memory{pages * page_size};
  const bool is_narrow = (scene.state.cr4 & PAE) == 0;
  for (std::uint64_t i = 0; i < pages; ++i) {
    const std::uint64_t low = scene.words[i] & low_bits(32);
    const std::uint64_t word = is_narrow ? low | (low << 32) : scene.words[i];
    for (std::uint64_t at = i * page_size; at < (i + 1) * page_size; at += 8) memory.poke(at, word, 8);
  }
  return memory;
}

constexpr std::array outcome_names{"mapped", "page fault", "bad table", "not canonical", "contended"};

std::string outcome_name(const Walk& walk) {
  if (const auto* fault = std::get_if<PageFault>(&walk)) {
    return (fault->error_code & page_fault_error::RSVD) != 0 ? "reserved bit"
           : (fault->error_code & page_fault_error::P) != 0  ? "no right"
                                                             : "not present";
  }
  return outcome_names.at(walk.index());
}

/// The walk's outcome as text, for a failure that a person can read.
std::string describe(const Walk& walk) {
  std::ostringstream text;
  text << std::hex << outcome_name(walk);
  if (const auto* m = std::get_if<Mapped>(&walk))
    text << " " << m->address.value() << " page " << m->page_bytes << (m->global ? " global" : "");
  if (const auto* f = std::get_if<PageFault>(&walk)) text << " at " << f->address.value() << " code " << f->error_code;
  if (const auto* b = std::get_if<BadTable>(&walk)) text << " " << b->entry.value();
  return text.str();
}

RC_GTEST_PROP(PagingWalk, AgreesWithANaiveReadingOfTheManual, ()) {
  const Scene scene = random_scene();
  TableMemory walked = memory_of(scene);
  TableMemory modelled = memory_of(scene);
  const Walk actual =
      translate(scene.state, walked, GuestLinear{scene.at}, scene.access, scene.privilege, scene.accessed_dirty);
  const Walk expected =
      model_translate(scene.state, modelled, scene.at, scene.access, scene.privilege, scene.accessed_dirty);
  RC_TAG(outcome_name(expected));
  RC_ASSERT(describe(actual) == describe(expected));
  RC_ASSERT(actual == expected);
  for (std::uint64_t at = 0; at < walked.size(); at += 8) RC_ASSERT(walked.peek(at, 8) == modelled.peek(at, 8));
}

RC_GTEST_PROP(PagingWalk, ReadsAtMostFiveEntriesAndChangesOnlyAccessedAndDirty, ()) {
  const Scene scene = random_scene();
  const TableMemory before = memory_of(scene);
  TableMemory after = memory_of(scene);
  (void)translate(scene.state, after, GuestLinear{scene.at}, scene.access, scene.privilege, AccessedDirty::leave);
  RC_ASSERT(after.reads <= 5U);
  RC_ASSERT(after.exchanges == 0U);
  (void)translate(scene.state, after, GuestLinear{scene.at}, scene.access, scene.privilege, AccessedDirty::set);
  const std::uint64_t flags = (scene.state.cr4 & PAE) == 0 ? (A | D) | ((A | D) << 32) : A | D;
  for (std::uint64_t at = 0; at < after.size(); at += 8) {
    const std::uint64_t change = before.peek(at, 8) ^ after.peek(at, 8);
    RC_ASSERT((change & ~flags) == 0U);
    RC_ASSERT((change & before.peek(at, 8)) == 0U);
  }
}

RC_GTEST_PROP(PagingWalk, FindsTheSamePageForEveryByteOfIt, ()) {
  const Scene scene = random_scene();
  TableMemory memory = memory_of(scene);
  const auto walk = [&](std::uint64_t at) {
    return translate(scene.state, memory, GuestLinear{at}, scene.access, scene.privilege, AccessedDirty::leave);
  };
  const Walk one = walk(scene.at);
  const auto* found = std::get_if<Mapped>(&one);
  if (found == nullptr) RC_DISCARD("the walk finds no page");
  const std::uint64_t offset = *rc::gen::inRange<std::uint64_t>(0, found->page_bytes);
  const Walk other = walk((scene.at & ~(found->page_bytes - 1)) | offset);
  const std::uint64_t expected = (found->address.value() & ~(found->page_bytes - 1)) | offset;
  RC_ASSERT(describe(other) == describe(Mapped{GuestPhysical{expected}, found->page_bytes, found->global}));
}

}  // namespace
}  // namespace vpmu::test
