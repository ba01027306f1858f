#include "virtio/queue.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>

#include <fmt/format.h>

#include "virtio/ring_layout.hpp"
#include "virtio/split_ring.hpp"

namespace vmm::virtio {
namespace {

using vpmu::GuestPhysical;

constexpr std::uint16_t flag_no_interrupt = 1;          // Virtio 1.2 2.7.6
constexpr std::uint64_t max_chain_bytes = 1ULL << 32U;  // Virtio 1.2 2.7.5.2

Failure nonsense(std::string what) {
  return usage_error("the guest's virtio driver " + std::move(what), "the guest's kernel is broken or hostile");
}

bool is_ram(const GuestMemory& memory, GuestPhysical at, std::uint64_t bytes) {
  return memory.bytes_at(at, bytes).size() == bytes;
}

}  // namespace

std::size_t total_bytes(std::span<const Piece> pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), std::size_t{0},
                         [](std::size_t sum, const Piece& piece) { return sum + piece.bytes; });
}

Result<Chain> walk_chain(const GuestMemory& memory, const Ring& ring, std::uint16_t head) {
  Chain chain{.head = head, .readable = {}, .writable = {}};
  std::uint16_t index = head;
  std::uint64_t bytes = 0;
  for (unsigned links = 0; links < ring.size; ++links) {
    if (index >= ring.size) return nonsense(fmt::format("names descriptor {} of a ring of {}", index, ring.size));
    Descriptor d;
    if (!memory.read(ring.descriptors + index * sizeof(Descriptor), std::as_writable_bytes(std::span{&d, 1})))
      return nonsense("has put its descriptors where there is no RAM");
    if ((d.flags & descriptor_indirect) != 0) return nonsense("uses an indirect descriptor, which was not offered");
    if (!is_ram(memory, GuestPhysical{d.address}, d.bytes))
      return nonsense(fmt::format("names {} bytes at {:#x}, which are not RAM", d.bytes, d.address));
    const bool writes = (d.flags & descriptor_write) != 0;
    if (!writes && !chain.writable.empty()) return nonsense("has a buffer to read after one to write");
    bytes += d.bytes;
    if (bytes > max_chain_bytes) return nonsense(fmt::format("has a chain of {} bytes, more than 2^32", bytes));
    if (d.bytes != 0)
      (writes ? chain.writable : chain.readable).push_back({.at = GuestPhysical{d.address}, .bytes = d.bytes});
    if ((d.flags & descriptor_next) == 0) return chain;
    index = d.next;
  }
  return nonsense(fmt::format("has a chain of more than {} descriptors", ring.size));
}

Result<Queue> Queue::open(const GuestMemory& memory, const Ring& ring, QueueProgress progress) {
  VMM_TRY(check_ring(ring, memory));
  return Queue{memory, ring, progress};
}

std::uint16_t Queue::available_index() const {
  return memory_->load<std::uint16_t>(ring_.available + ring_index_offset).value_or(progress_.taken);
}

bool Queue::has_more() const { return available_index() != progress_.taken; }

Result<std::optional<Chain>> Queue::next() {
  const std::uint16_t available = available_index();
  if (available == progress_.taken) return std::optional<Chain>{};
  if (static_cast<std::uint16_t>(available - progress_.taken) > ring_.size)
    return nonsense(fmt::format("has {} buffers available in a ring of {}",
                                static_cast<std::uint16_t>(available - progress_.taken), ring_.size));
  const auto head = memory_->load<std::uint16_t>(ring_.available + ring_entries_offset +
                                                 progress_.taken % ring_.size * available_entry_bytes);
  VMM_ASSIGN(auto chain, walk_chain(*memory_, ring_, head.value_or(ring_.size)));
  ++progress_.taken;
  return std::optional{std::move(chain)};
}

void Queue::give_back(const Chain& chain, std::uint32_t written) {
  const GuestPhysical entry = ring_.used + ring_entries_offset + progress_.given % ring_.size * used_entry_bytes;
  // open() has checked that they are RAM.
  static_cast<void>(memory_->store<std::uint32_t>(entry, chain.head));
  static_cast<void>(memory_->store<std::uint32_t>(entry + 4, written));
  ++progress_.given;
  static_cast<void>(memory_->store<std::uint16_t>(ring_.used + ring_index_offset, progress_.given));
}

bool Queue::wants_interrupt() const {
  // The driver writes its flags, then reads our index; we write the index, then read its flags. Neither may be
  // reordered.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return (memory_->load<std::uint16_t>(ring_.available).value_or(0) & flag_no_interrupt) == 0;
}

std::size_t Queue::read(const Chain& chain, std::size_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  for (const Piece& piece : chain.readable) {
    if (offset >= piece.bytes) {
      offset -= piece.bytes;
      continue;
    }
    const std::size_t part = std::min<std::size_t>(piece.bytes - offset, out.size() - done);
    if (!memory_->read(piece.at + offset, out.subspan(done, part))) break;
    offset = 0;
    done += part;
    if (done == out.size()) break;
  }
  return done;
}

std::size_t Queue::write(const Chain& chain, std::span<const std::byte> in) const {
  std::size_t done = 0;
  for (const Piece& piece : chain.writable) {
    const std::size_t part = std::min<std::size_t>(piece.bytes, in.size() - done);
    if (!memory_->write(piece.at, in.subspan(done, part))) break;
    done += part;
    if (done == in.size()) break;
  }
  return done;
}

}  // namespace vmm::virtio
