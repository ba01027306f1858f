#include "test_kernel/guest/event.hpp"

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace vmm::tool::checker {
namespace {

constexpr std::size_t page_bytes = 4096;

perf_event_attr event(std::uint32_t type, std::uint64_t config, Counts counts) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = type;
  attributes.config = config;
  attributes.disabled = 1;
  attributes.exclude_user = counts == Counts::kernel;
  attributes.exclude_kernel = counts == Counts::user;
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  return attributes;
}

/// Reads the fields of a record, one after the other; 0 after its end.
class Fields {
 public:
  Fields(const std::byte* at, std::size_t bytes) : at_{at}, left_{bytes / sizeof(std::uint64_t)} {}
  std::uint64_t next() {
    if (left_ == 0) return 0;
    --left_;
    std::uint64_t value = 0;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  [[nodiscard]] std::size_t left() const { return left_; }

 private:
  const std::byte* at_;
  std::size_t left_;
};

/// The fields are in the order of perf_event_open(2), PERF_RECORD_SAMPLE.
Sample read_sample(Fields fields, std::uint64_t type) {
  Sample sample;
  if ((type & PERF_SAMPLE_IP) != 0) sample.ip = fields.next();
  if ((type & PERF_SAMPLE_TIME) != 0) fields.next();
  if ((type & PERF_SAMPLE_ADDR) != 0) sample.address = fields.next();
  if ((type & PERF_SAMPLE_CALLCHAIN) != 0)
    for (std::uint64_t count = fields.next(); count > 0 && fields.left() > 0; --count)
      sample.callers.push_back(fields.next());
  if ((type & PERF_SAMPLE_BRANCH_STACK) != 0) {
    for (std::uint64_t count = fields.next(); count > 0 && fields.left() > 0; --count) {
      const std::uint64_t from = fields.next(), to = fields.next();
      fields.next();
      sample.branches.push_back({.from = from, .to = to});
    }
  }
  if ((type & PERF_SAMPLE_WEIGHT) != 0) sample.weight = fields.next();
  if ((type & PERF_SAMPLE_DATA_SRC) != 0) sample.data_source = fields.next();
  return sample;
}

}  // namespace

perf_event_attr hardware_event(std::uint64_t number, Counts counts) {
  return event(PERF_TYPE_HARDWARE, number, counts);
}

perf_event_attr read_misses(std::uint64_t cache, Counts counts) {
  constexpr std::uint64_t read = PERF_COUNT_HW_CACHE_OP_READ, misses = PERF_COUNT_HW_CACHE_RESULT_MISS;
  return event(PERF_TYPE_HW_CACHE, cache | read << 8 | misses << 16, counts);
}

perf_event_attr raw_event(std::uint64_t config, Counts counts) { return event(PERF_TYPE_RAW, config, counts); }

OpenedEvent open_event(const perf_event_attr& attributes, int group) {
  perf_event_attr copy = attributes;
  // Only the leader starts disabled: enabling it enables its group.
  if (group >= 0) copy.disabled = 0;
  const auto fd = ::syscall(SYS_perf_event_open, &copy, 0, -1, group, PERF_FLAG_FD_CLOEXEC);
  if (fd < 0) return {.fd = Fd{}, .error = errno};
  return {.fd = Fd{static_cast<int>(fd)}, .error = 0};
}

std::optional<std::uint64_t> count_of(const OpenedEvent& event) {
  std::array<std::uint64_t, 3> values{};
  if (::read(event.fd.get(), values.data(), sizeof values) != sizeof values) return std::nullopt;
  const auto [count, enabled, running] = values;
  if (enabled != running || running == 0) return std::nullopt;
  return count;
}

SampleBuffer::SampleBuffer(const OpenedEvent& event)
    : memory_{::mmap(nullptr, (pages + 1) * page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, event.fd.get(), 0)} {
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    error_ = errno;
  }
}

SampleBuffer::~SampleBuffer() {
  if (memory_ != nullptr) ::munmap(memory_, (pages + 1) * page_bytes);
}

Recording SampleBuffer::take(std::uint64_t sample_type) const {
  Recording recording;
  if (memory_ == nullptr) return recording;
  const auto* const header = static_cast<const perf_event_mmap_page*>(memory_);
  const auto* const data = static_cast<const std::byte*>(memory_) + page_bytes;
  const std::uint64_t end = header->data_head;
  std::atomic_thread_fence(std::memory_order_acquire);
  // The buffer is never emptied, so no record wraps around its end.
  for (std::uint64_t at = 0; at + sizeof(perf_event_header) <= end;) {
    perf_event_header record{};
    std::memcpy(&record, data + at, sizeof record);
    if (record.size < sizeof record || at + record.size > end) break;
    if (record.type == PERF_RECORD_SAMPLE)
      recording.samples.push_back(
          read_sample(Fields{data + at + sizeof record, record.size - sizeof record}, sample_type));
    else if (record.type == PERF_RECORD_LOST || record.type == PERF_RECORD_THROTTLE)
      ++recording.lost;
    at += record.size;
  }
  return recording;
}

}  // namespace vmm::tool::checker
