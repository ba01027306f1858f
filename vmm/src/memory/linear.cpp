#include "memory/linear.hpp"

#include <algorithm>
#include <optional>
#include <variant>

namespace vmm {
namespace {

using vpmu::AccessedDirty;
using vpmu::AccessFault;
using vpmu::AccessResult;
using vpmu::GuestLinear;
using vpmu::GuestPhysical;
using vpmu::PagingAccess;

/// Page-table words whose changes are reported to the dirty-page log.
class LoggedWords final : public vpmu::PhysicalWords {
 public:
  LoggedWords(vpmu::PhysicalWords& words, const DirtyPageLog& log) : words_{words}, log_{log} {}
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) override {
    return words_.read_word(at, bytes);
  }
  bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    const bool is_done = words_.exchange_word(at, bytes, expected, desired);
    if (is_done && log_) log_(page_of(at));
    return is_done;
  }

 private:
  vpmu::PhysicalWords& words_;
  const DirtyPageLog& log_;
};

/// Parameters of an access's page walks.
struct Manner {
  PagingAccess access{};
  vpmu::PagingPrivilege privilege{};
  AccessedDirty accessed_dirty{};
};

AccessFault not_memory(GuestLinear at) { return {.address = at, .not_memory = true}; }

/// The part of an access that lies in one 4 KiB page.
struct Piece {
  GuestPhysical at;
  std::size_t offset{};  ///< Of the piece in the whole access.
  std::size_t bytes{};
};

/// Walks the page tables for each page of [at, at + size) and calls `use` with its piece; `use` returns whether it was
/// RAM.
template <class Use>
AccessResult for_each_piece(const vpmu::PagingState& state, vpmu::PhysicalWords& words, GuestLinear at,
                            std::uint64_t size, Manner manner, Use use) {
  if (size > LinearMemory::max_bytes) return not_memory(at);
  for (std::uint64_t done = 0; done < size;) {
    const GuestLinear here = at + done;
    const vpmu::Walk walk = vpmu::translate(state, words, here, manner.access, manner.privilege, manner.accessed_dirty);
    if (const auto* fault = std::get_if<vpmu::PageFault>(&walk)) {
      return AccessFault{.address = fault->address, .error_code = fault->error_code};
    }
    const auto* mapped = std::get_if<vpmu::Mapped>(&walk);
    if (mapped == nullptr) return not_memory(here);
    const std::uint64_t bytes = std::min(size - done, vpmu::page_size - vpmu::page_offset(here));
    if (!use(Piece{mapped->address, done, bytes})) return not_memory(here);
    done += bytes;
  }
  return std::nullopt;
}

}  // namespace

AccessResult LinearMemory::read(const vpmu::PagingState& state, GuestLinear at, std::span<std::byte> out,
                                vpmu::PagingPrivilege privilege) const {
  LoggedWords words{memory_, log_};
  return for_each_piece(
      state, words, at, out.size(), {PagingAccess::read, privilege, AccessedDirty::set},
      [&](const Piece& piece) { return memory_.read(piece.at, out.subspan(piece.offset, piece.bytes)); });
}

AccessResult LinearMemory::write(const vpmu::PagingState& state, GuestLinear at, std::span<const std::byte> in,
                                 vpmu::PagingPrivilege privilege) const {
  LoggedWords words{memory_, log_};
  return for_each_piece(state, words, at, in.size(), {PagingAccess::write, privilege, AccessedDirty::set},
                        [&](const Piece& piece) {
                          const bool is_done = memory_.write(piece.at, in.subspan(piece.offset, piece.bytes));
                          if (is_done && log_) log_(page_of(piece.at));
                          return is_done;
                        });
}

AccessResult LinearMemory::probe(const vpmu::PagingState& state, GuestLinear at, std::uint64_t size,
                                 vpmu::AccessKind kind, vpmu::PagingPrivilege privilege) const {
  const auto access = kind == vpmu::AccessKind::write ? PagingAccess::write : PagingAccess::read;
  return for_each_piece(state, memory_, at, size, {access, privilege, AccessedDirty::leave},
                        [&](const Piece& piece) { return memory_.contains(piece.at, piece.bytes); });
}

std::size_t LinearMemory::fetch(const vpmu::PagingState& state, GuestLinear at, std::span<std::byte> out,
                                vpmu::PagingPrivilege privilege) const {
  std::size_t fetched = 0;
  (void)for_each_piece(state, memory_, at, out.size(), {PagingAccess::execute, privilege, AccessedDirty::leave},
                       [&](const Piece& piece) {
                         const bool is_ram = memory_.read(piece.at, out.subspan(piece.offset, piece.bytes));
                         if (is_ram) fetched = piece.offset + piece.bytes;
                         return is_ram;
                       });
  return fetched;
}

bool LinearMemory::patch(const vpmu::PagingState& state, GuestLinear at, std::span<const std::byte> in) const {
  if (in.empty() || vpmu::page_offset(at) + in.size() > vpmu::page_size) return false;
  LoggedWords words{memory_, log_};
  const vpmu::Walk walk =
      vpmu::translate(state, words, at, PagingAccess::read, vpmu::PagingPrivilege::supervisor, AccessedDirty::leave);
  const auto* mapped = std::get_if<vpmu::Mapped>(&walk);
  if (mapped == nullptr || !memory_.contains(mapped->address, in.size())) return false;
  if (log_) log_(page_of(mapped->address));
  return memory_.write(mapped->address, in);
}

}  // namespace vmm
