#include "exec/memory/access.hpp"

#include "exec/memory/address_spaces.hpp"
#include "exec/memory/code_pages.hpp"
#include "exec/state/tap.hpp"

namespace vpmu::exec {
namespace {

std::byte* stop_for(Core* c, Stop why) {
  c->stop = why;
  return nullptr;
}

/// Finds the page in the tables. False: the engine must stop.
bool walk_to(Core* c, Rights rights, std::uint64_t at, PagingAccess access, KnownPage& known) {
  const auto privilege = c->cpl == 3 ? PagingPrivilege::user : PagingPrivilege::supervisor;
  const Walk walk = translate(c->paging, *c->ram, GuestLinear{at}, access, privilege, AccessedDirty::set);
  const auto* mapped = std::get_if<Mapped>(&walk);
  const GuestPhysical page{mapped == nullptr ? 0 : mapped->address.value() - at % page_size};
  std::byte* const host = mapped == nullptr ? nullptr : c->ram->page(page);
  if (host == nullptr) {
    c->missing = {.at = at, .write = access == PagingAccess::write};
    return stop_for(c, Stop::fault) != nullptr;
  }
  if (mapped->page_bytes > page_size) c->large_pages |= large_place(at);
  known = {.linear = at / page_size,
           .generation = c->tlb_generation,
           .host = host,
           .seen = seen_page(*mapped, at),
           .rights = rights};
  return true;
}

}  // namespace

std::byte* find_slow_path(Core* c, std::uint64_t at, PagingAccess access, unsigned bytes) {
  return c->tap == nullptr ? find_in_tables(c, rights_of(*c), at, access) : find_tapped(c, at, access, bytes);
}

std::byte* find_in_tables(Core* c, Rights rights, std::uint64_t at, PagingAccess access) {
  look_at_kick(c);
  const bool writes = access == PagingAccess::write;
  KnownPage& known = c->known[known_place(at)];
  const bool is_known = known.linear == at / page_size && known.generation == c->tlb_generation &&
                        known.rights == rights && (known.writable || !writes);
  if (!is_known && !walk_to(c, rights, at, access, known)) return nullptr;
  const std::size_t place = tlb_place(at);
  const std::uint64_t tag = at % page_size - at;
  if (c->tap != nullptr) c->tap->pages[static_cast<unsigned>(rights)][place] = known.seen;
  Tlb& tlb = c->tlbs[static_cast<unsigned>(rights)];
  tlb.add[place] = reinterpret_cast<std::uintptr_t>(known.host) + tag;
  tlb.read[place] = tag;
  const bool is_open = known.writable && known.told == c->stretch;
  tlb.write[place] = is_open ? tag : Tlb::no_tag(place);
  std::byte* const found = known.host + at % page_size;
  if (!writes || is_open) return found;
  const GuestPhysical page{known.seen.physical};
  c->ram->will_write(page);
  if (!c->code->holds(page)) {
    known.writable = true;
    known.told = c->stretch;
    tlb.write[place] = tag;
    return found;
  }
  // The rest of the running block may be what is written: it must not go on as decoded.
  if (!c->stepping) return stop_for(c, Stop::alone);
  c->code->forget(*c, page);
  c->wrote_code = true;
  return found;
}

const std::byte* load_across(Core* c, std::uint64_t at, unsigned bytes) {
  const auto first = static_cast<unsigned>(page_size - at % page_size);
  const std::byte* const low = find_slow_path(c, at, PagingAccess::read, first);
  if (low == nullptr) return nullptr;
  std::memcpy(c->operand.data(), low, first);
  const std::byte* const high = find_slow_path(c, at + first, PagingAccess::read, bytes - first);
  if (high == nullptr) return nullptr;
  std::memcpy(c->operand.data() + first, high, bytes - first);
  return c->operand.data();
}

bool store_across(Core* c, std::uint64_t at, std::uint64_t value, unsigned bytes) {
  const auto first = static_cast<unsigned>(page_size - at % page_size);
  std::byte* const low = find_slow_path(c, at, PagingAccess::write, first);
  if (low == nullptr) return false;
  std::byte* const high = find_slow_path(c, at + first, PagingAccess::write, bytes - first);
  if (high == nullptr) return false;
  std::memcpy(low, &value, first);
  value >>= 8 * first;
  std::memcpy(high, &value, bytes - first);
  return true;
}

void cut_short(Core* c) {
  const std::int64_t left = c->left[count_instructions];
  c->left[count_instructions] = 0;
  c->aside += left;
  if (c->tap != nullptr) c->tap->begun_with -= left;
}

void flush_tlb(Core* c) {
  for (Tlb& tlb : c->tlbs) tlb.clear();
  c->tlb_generation = ++c->last_generation;
}

// Pages that are known were found writable under the old CR0.WP, or were not.
void forget_writes(Core* c) {
  for (Tlb& tlb : c->tlbs) tlb.clear_writes();
  c->tlb_generation = ++c->last_generation;
  c->spaces->forget_translations();
}

void forget_page(Core* c, std::uint64_t at) {
  const std::size_t place = tlb_place(at);
  for (Tlb& tlb : c->tlbs) tlb.read[place] = tlb.write[place] = Tlb::no_tag(place);
  c->known[known_place(at)].generation = 0;
}

void choose_tlb(Core* c) { c->tlb = &c->tlbs[static_cast<unsigned>(rights_of(*c))]; }

}  // namespace vpmu::exec
