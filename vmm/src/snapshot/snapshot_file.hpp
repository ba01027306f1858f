#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "memory/guest_memory.hpp"
#include "snapshot/byte_stream.hpp"
#include "snapshot/section_file.hpp"
#include "support/result.hpp"

namespace vmm {

/// The state of a stopped machine, without its RAM.
struct MachineImage {
  static constexpr std::uint32_t max_vcpus = 64;

  std::string model;  ///< Configuration of the machine; a restored one is made with the same.
  std::uint64_t memory_bytes{};
  std::uint32_t cpus{}, threads_per_core{};
  bool bare_metal{};
  bool without_kvm{};
  std::int64_t epoch{};       ///< Without KVM: MachineConfig::epoch.
  std::uint64_t turn{};       ///< Without KVM: Schedule::turn.
  std::uint64_t turn_seed{};  ///< Without KVM: Schedule::seed.
  std::uint64_t time{};       ///< TimeModel.
  std::string changes{};      ///< SourceOptions::changes, as text.
  Bytes chips;                ///< Of the accelerator.
  Bytes devices;              ///< Of the machine.
  std::vector<Bytes> vcpus;   ///< By id, their PMUs included.
};

/// A file for a snapshot: see WholeFile::create() and WholeFile::given().
Result<WholeFile> new_snapshot_file(const std::string& path);
Result<WholeFile> given_snapshot_file(Fd fd);

/// Writes a snapshot completely, or not at all. Zero pages are left out. Nothing may write to the RAM meanwhile. Fails
/// with kind usage if the file cannot be written. Cost: the RAM is read twice, and its nonzero pages are written.
Result<void> write_snapshot(WholeFile whole, const MachineImage& image, const GuestMemory& memory);

/// A snapshot being read. Each section of the file has a checksum; a failure names the section. An undamaged file may
/// still be harmful, so the component that takes over a state checks its contents.
class SnapshotReader {
 public:
  /// Reads all but the RAM. Fails with kind usage if the file cannot be read, is no regular file or no snapshot, or is
  /// damaged or cut short.
  static Result<SnapshotReader> open(const std::string& path);

  [[nodiscard]] const MachineImage& image() const { return image_; }
  /// Reads the RAM into fresh memory of image().memory_bytes. Call it once. Fails as open() does; the memory then holds
  /// a part.
  Result<void> read_memory(const GuestMemory& memory);

 private:
  explicit SnapshotReader(SectionReader file) : file_{std::move(file)} {}
  Result<void> read_image();

  SectionReader file_;
  MachineImage image_;
};

}  // namespace vmm
