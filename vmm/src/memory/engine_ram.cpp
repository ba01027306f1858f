#include "memory/engine_ram.hpp"

namespace vmm {

std::optional<std::uint64_t> EngineRam::read_word(vpmu::GuestPhysical at, unsigned bytes) {
  return memory_->physical().read_word(at, bytes);
}

bool EngineRam::exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) {
  if (!memory_->physical().exchange_word(at, bytes, expected, desired)) return false;
  memory_->written(vpmu::GuestPhysical{at.value() & ~(vpmu::page_size - 1)});
  return true;
}

void EngineRam::close() {
  for (const vpmu::GuestPhysical page : open_) memory_->written(page);
  open_.clear();
}

}  // namespace vmm
