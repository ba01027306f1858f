#include "snapshot/checksum.hpp"

// Compiled in, so that libvpmu-kvm.so, which is loaded into other programs, needs no further library.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace vmm {

struct Checksum::State {
  XXH3_state_t xxh3;
};

void Checksum::Free::operator()(State* state) const { delete state; }

Checksum::Checksum() : state_{new State} { XXH3_64bits_reset(&state_->xxh3); }

void Checksum::add(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size()); }

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->xxh3); }

}  // namespace vmm
