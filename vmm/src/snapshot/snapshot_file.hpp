#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "memory/guest_memory.hpp"
#include "snapshot/byte_stream.hpp"
#include "support/result.hpp"

namespace vmm {

/// A machine at rest, but for its RAM.
struct MachineImage {
  std::string model;  ///< With what the machine was made; a restored one is made the same.
  std::uint64_t memory_bytes{};
  std::uint32_t cpus{}, threads_per_core{};
  bool bare_metal{};
  Bytes chips;               ///< Of the accelerator.
  Bytes devices;             ///< Of the machine.
  std::vector<Bytes> vcpus;  ///< By id, their PMUs included.
};

/// Writes a snapshot whole, or not at all: another file takes the name only once it is complete. Pages that are zero are left out. Fails with kind
/// usage where the file cannot be written.
Result<void> write_snapshot(const std::string& path, const MachineImage& image, const GuestMemory& memory);

/// Fails with kind usage where the file cannot be read, is no snapshot, or is cut short.
Result<MachineImage> read_snapshot(const std::string& path);
/// The RAM, into fresh memory of the same size.
Result<void> read_memory(const std::string& path, const GuestMemory& memory);

}  // namespace vmm
