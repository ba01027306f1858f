#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/known.hpp"
#include "test_kernel/guest/recorded.hpp"
#include "test_kernel/guest/system_files.hpp"

namespace vmm::tool::checker {
namespace {

constexpr std::uint64_t access_period = 199;
constexpr std::uint64_t access_sample = PERF_SAMPLE_IP | PERF_SAMPLE_ADDR | PERF_SAMPLE_WEIGHT | PERF_SAMPLE_DATA_SRC;
constexpr std::uint64_t min_latency = 3;   // every load has a higher one
constexpr std::uint64_t max_latency = 12;  // of a load that hits the L1, including possible delays
constexpr std::uint64_t offcore_response = 0x01B7;

/// A variable in a cache line of its own.
struct alignas(line_bytes) Known {
  std::array<std::uint64_t, 2> words{};
};

/// The access that a sample must describe.
struct Access {
  const void* instruction;
  const void* address;
  std::uint64_t operation;
  bool has_latency;
};

std::string compare(const Sample& sample, const Access& access) {
  if (sample.ip != address_of(access.instruction))
    return "at " + hexadecimal(sample.ip) + ", not " + hexadecimal(address_of(access.instruction));
  if (sample.address != address_of(access.address))
    return "of address " + hexadecimal(sample.address) + ", not " + hexadecimal(address_of(access.address));
  const perf_mem_data_src source{.val = sample.data_source};
  if (source.mem_op != access.operation) return "data source " + hexadecimal(sample.data_source);
  if (access.has_latency && (sample.weight < min_latency || sample.weight > max_latency))
    return "latency " + decimal(sample.weight);
  const std::uint64_t hit = PERF_MEM_LVL_HIT | PERF_MEM_LVL_L1;
  if ((source.mem_lvl & hit) != hit) return "level " + hexadecimal(source.mem_lvl);
  return {};
}

Recorded record_loop(const perf_event_attr& event, Known& memory) {
  return record(event, [&memory](int fd) { vpmu_known_loop(fd, usual_loop.rounds, memory.words.data()); });
}

/// The processor does not follow every load from start to end, so the number of samples is not fixed.
void check_loads(const Processor& processor, Report& report) {
  Known memory;
  perf_event_attr event = sampled(raw_event(processor.loads, Counts::user), access_period, 2, access_sample);
  event.config1 = min_latency;
  const Recorded recorded = record_loop(event, memory);
  if (!processor.known) {
    const bool refused = says_unsupported(recorded.refused);
    return report.check("mem.loads", refused, "refused", refused ? "refused" : "not refused");
  }
  const std::size_t max = usual_loop.rounds / access_period;
  const std::size_t count = recorded.recording.samples.size();
  const Access access{vpmu_known_load, memory.words.data(), PERF_MEM_OP_LOAD, true};
  std::string wrong = recorded.failure;
  for (std::size_t i = 0; i < count && wrong.empty(); ++i) wrong = compare(recorded.recording.samples[i], access);
  report.check("mem.loads", wrong.empty() && count > 0 && count <= max,
               "1 to " + decimal(max) + " samples, each of the loop's load from the L1",
               decimal(count) + " samples" + (wrong.empty() ? "" : ": " + wrong));
}

void check_stores(const Processor& processor, Report& report) {
  if (processor.stores == 0 || !processor.known) {
    const bool has = exists(core_pmu_path("events/mem-stores"));
    return report.equal("mem.stores", "no event", has ? "an event" : "no event");
  }
  Known memory;
  const Recorded recorded = record_loop(sampled(raw_event(processor.stores, Counts::user), access_period, 2,
                                                access_sample & ~std::uint64_t{PERF_SAMPLE_WEIGHT}),
                                        memory);
  const Access access{vpmu_known_store, memory.words.data() + 1, PERF_MEM_OP_STORE, false};
  check_samples(report, "mem.stores", recorded, usual_loop.rounds / (access_period + 1),
                "each of the loop's store to the L1",
                [&access](const Sample& sample, std::size_t) { return compare(sample, access); });
}

/// More memory than an L2 or a second-level TLB covers, in pages of 4 KiB. One object for all checks: if each check
/// mapped its own, the next would get the last pages first, which a cache may still hold.
class WalkedMemory {
 public:
  WalkedMemory() {
    void* const memory = ::mmap(nullptr, walked_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    memory_ = static_cast<std::byte*>(memory);
    ::madvise(memory_, walked_bytes, MADV_NOHUGEPAGE);  // fails on kernels without huge pages
    for (std::size_t at = 0; at < walked_bytes; at += page_bytes) memory_[at] = std::byte{1};
  }
  WalkedMemory(const WalkedMemory&) = delete;
  WalkedMemory& operator=(const WalkedMemory&) = delete;
  ~WalkedMemory() {
    if (memory_ != nullptr) ::munmap(memory_, walked_bytes);
  }
  static constexpr std::uint64_t page_bytes = 4096;
  static constexpr std::uint64_t pages = walked_bytes / page_bytes;

  /// In lines, of a walk: one behind the other; or each in another page, where no prefetcher expects it.
  static constexpr unsigned next_line = 1, next_page = 67;
  /// Checks an event's count while all of the memory is read.
  void check(std::string_view name, const perf_event_attr& event, std::uint64_t expected, std::string_view what,
             Report& report, unsigned step = next_line) const {
    if (memory_ == nullptr) return report.check(name, false, "memory", "none");
    const OpenedEvent opened = open_event(event);
    if (!opened.is_refused()) vpmu_known_walk(opened.fd.get(), memory_, walked_lines, step);
    const std::uint64_t count = count_of(opened).value_or(0);
    report.check(name, count >= expected - expected / 10 && count <= expected + expected / 10,
                 decimal(expected) + ' ' + std::string{what} + ", give or take a tenth",
                 opened.is_refused() ? refusal(opened.error) : decimal(count));
  }

 private:
  std::byte* memory_{};
};

/// perf's generic cache events, as the kernel's tables define them for this processor.
void check_cache_events(const Processor& processor, const WalkedMemory& memory, Report& report) {
  const perf_event_attr lines = read_misses(PERF_COUNT_HW_CACHE_L1D, Counts::user);
  const perf_event_attr pages = read_misses(PERF_COUNT_HW_CACHE_DTLB, Counts::user);
  if (!processor.known) {
    report.equal("cache.l1d", refusal(ENOENT), refusal(open_event(lines).error));
    return report.equal("cache.dtlb", refusal(ENOENT), refusal(open_event(pages).error));
  }
  memory.check("cache.l1d", lines, walked_lines, "lines that missed the L1", report);
  memory.check("cache.dtlb", pages, WalkedMemory::pages, "pages that missed the TLBs", report);
}

/// Demand reads of lines that are in no L2.
void check_offcore(const Processor& processor, const WalkedMemory& memory, Report& report) {
  if (!processor.known) {
    const bool has = exists(core_pmu_path("format/offcore_rsp"));
    return report.equal("offcore", "no event", has ? "an event" : "no event");
  }
  perf_event_attr event = raw_event(offcore_response, Counts::user);
  event.config1 = processor.offcore;
  memory.check("offcore", event, walked_lines, "reads", report, WalkedMemory::next_page);
}

}  // namespace

void check_memory(const Processor& processor, Report& report) {
  check_loads(processor, report);
  check_stores(processor, report);
  const WalkedMemory memory;
  check_cache_events(processor, memory, report);
  check_offcore(processor, memory, report);
}

}  // namespace vmm::tool::checker
