#include "exec/access.hpp"

#include "exec/code_cache.hpp"

namespace vpmu::exec {
namespace {

std::byte* stop_for(Core* c, Stop why) {
  c->stop = why;
  return nullptr;
}

}  // namespace

std::byte* find_slowly(Core* c, std::uint64_t at, PagingAccess access) {
  const auto privilege = c->cpl == 3 ? PagingPrivilege::user : PagingPrivilege::supervisor;
  const Walk walk = translate(c->paging, *c->ram, GuestLinear{at}, access, privilege, AccessedDirty::set);
  const auto* mapped = std::get_if<Mapped>(&walk);
  if (mapped == nullptr) return stop_for(c, Stop::fault);
  const std::uint64_t in_page = at % page_size;
  const GuestPhysical page{mapped->address.value() - in_page};
  std::byte* const host = c->ram->page(page);
  if (host == nullptr) return stop_for(c, Stop::fault);
  const std::uint64_t linear_page = at / page_size;
  TlbEntry& e = tlb_entry(c, at);
  if (e.read_tag != linear_page) e = {};
  e.add = reinterpret_cast<std::uintptr_t>(host) - linear_page * page_size;
  e.read_tag = linear_page;
  if (access != PagingAccess::write) return host + in_page;
  c->ram->will_write(page);
  if (!c->code->holds(page)) {
    e.write_tag = linear_page;
    return host + in_page;
  }
  // The rest of the running block may be what is written: it must not go on as decoded.
  if (!c->stepping) return stop_for(c, Stop::alone);
  c->code->forget(page);
  c->wrote_code = true;
  return host + in_page;
}

const std::byte* load_across(Core* c, std::uint64_t at, unsigned bytes) {
  const auto first = static_cast<unsigned>(page_size - at % page_size);
  const std::byte* const low = find_slowly(c, at, PagingAccess::read);
  if (low == nullptr) return nullptr;
  std::memcpy(c->operand.data(), low, first);
  const std::byte* const high = find_slowly(c, at + first, PagingAccess::read);
  if (high == nullptr) return nullptr;
  std::memcpy(c->operand.data() + first, high, bytes - first);
  return c->operand.data();
}

bool store_across(Core* c, std::uint64_t at, std::uint64_t value, unsigned bytes) {
  const auto first = static_cast<unsigned>(page_size - at % page_size);
  std::byte* const low = find_slowly(c, at, PagingAccess::write);
  if (low == nullptr) return false;
  std::byte* const high = find_slowly(c, at + first, PagingAccess::write);
  if (high == nullptr) return false;
  std::memcpy(low, &value, first);
  value >>= 8 * first;
  std::memcpy(high, &value, bytes - first);
  return true;
}

void flush_tlb(Core* c) {
  for (Tlb& tlb : c->tlbs) tlb.fill({});
}

void choose_tlb(Core* c) {
  const Rights rights = c->cpl == 3 ? Rights::user : c->paging.alignment_check ? Rights::supervisor_ac : Rights::supervisor;
  c->tlb = &c->tlbs[static_cast<unsigned>(rights)];
}

}  // namespace vpmu::exec
