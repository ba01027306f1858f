#pragma once
#include <linux/perf_event.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvm/fd.hpp"

namespace vmm::tool::checker {

/// The privilege levels that an event counts.
enum class Counts : std::uint8_t { user, kernel, both };

/// An event that counts nothing until its group is enabled.
perf_event_attr hardware_event(std::uint64_t number, Counts counts);
/// Reads that missed one of perf's caches: PERF_COUNT_HW_CACHE_.
perf_event_attr read_misses(std::uint64_t cache, Counts counts);
/// An event by its code and umask, as PERFEVTSEL has them.
perf_event_attr raw_event(std::uint64_t config, Counts counts);

/// An event of this thread, or the error with which the kernel refused it.
struct OpenedEvent {
  Fd fd;
  int error{};
  [[nodiscard]] bool is_refused() const { return error != 0; }
};
/// `group`: the descriptor of the group's leader; -1: it leads one of its own.
OpenedEvent open_event(const perf_event_attr& attributes, int group = -1);

/// An event's count. Nothing if the event was multiplexed: not running for all the time that it was enabled.
std::optional<std::uint64_t> count_of(const OpenedEvent& event);

/// A branch of a sample.
struct Branch {
  std::uint64_t from, to;
};

/// One record of an event; fields that its sample_type does not select are 0.
struct Sample {
  std::uint64_t ip{}, address{}, weight{}, data_source{};
  std::vector<std::uint64_t> callers;  ///< PERF_SAMPLE_CALLCHAIN, with its PERF_CONTEXT_ marks.
  std::vector<Branch> branches;
};

/// What an event has recorded.
struct Recording {
  std::vector<Sample> samples;
  /// Records that report lost records.
  unsigned lost{};
};

/// The buffer of an event that samples.
class SampleBuffer {
 public:
  static constexpr std::size_t pages = 256;
  explicit SampleBuffer(const OpenedEvent& event);
  SampleBuffer(const SampleBuffer&) = delete;
  SampleBuffer& operator=(const SampleBuffer&) = delete;
  ~SampleBuffer();
  /// errno of what failed, or 0.
  [[nodiscard]] int error() const { return error_; }
  /// All records in the buffer, of this sample type.
  [[nodiscard]] Recording take(std::uint64_t sample_type) const;

 private:
  void* memory_{};
  int error_{};
};

}  // namespace vmm::tool::checker
