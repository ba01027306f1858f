#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "memory/guest_memory.hpp"
#include "snapshot/byte_stream.hpp"
#include "snapshot/section_file.hpp"
#include "support/result.hpp"

namespace vmm {

/// A machine at rest, but for its RAM.
struct MachineImage {
  static constexpr std::uint32_t most_vcpus = 64;

  std::string model;  ///< With what the machine was made; a restored one is made the same.
  std::uint64_t memory_bytes{};
  std::uint32_t cpus{}, threads_per_core{};
  bool bare_metal{};
  bool without_kvm{};
  std::int64_t epoch{};       ///< Without KVM: MachineConfig::epoch,
  std::uint64_t turn{};       ///< and the schedule of its processors:
  std::uint64_t turn_seed{};  ///< Schedule.
  Bytes chips;                ///< Of the accelerator.
  Bytes devices;              ///< Of the machine.
  std::vector<Bytes> vcpus;   ///< By id, their PMUs included.
};

/// A file for a snapshot: see WholeFile::create() and WholeFile::given().
Result<WholeFile> new_snapshot_file(const std::string& path);
Result<WholeFile> given_snapshot_file(Fd fd);

/// Writes a snapshot whole, or not at all. Pages that are zero are left out. Nothing may write to the RAM meanwhile.
/// Fails with kind usage where the file cannot be written. Cost: the RAM is read twice, and its pages that are not zero
/// are written.
Result<void> write_snapshot(WholeFile whole, const MachineImage& image, const GuestMemory& memory);

/// A snapshot that is read. Each section of the file has a checksum; a failure names the section. That a file is
/// undamaged does not make it harmless: what is in it is checked by those whose state it is.
class SnapshotReader {
 public:
  /// Reads all but the RAM. Fails with kind usage where the file cannot be read, is no regular file, is no snapshot, is
  /// damaged or cut short.
  static Result<SnapshotReader> open(const std::string& path);

  [[nodiscard]] const MachineImage& image() const { return image_; }
  /// The RAM, into fresh memory of image().memory_bytes. Once. Fails as open() does, with part of it in the memory.
  Result<void> read_memory(const GuestMemory& memory);

 private:
  explicit SnapshotReader(SectionReader file) : file_{std::move(file)} {}
  Result<void> read_image();

  SectionReader file_;
  MachineImage image_;
};

}  // namespace vmm
