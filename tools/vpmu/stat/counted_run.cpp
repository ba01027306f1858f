#include "stat/counted_run.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "exec/exec.hpp"

namespace vmm::tool {
namespace {

/// Memory that the child shares, for it can open no file once it is confined.
class SharedTotals {
 public:
  static Result<SharedTotals> create(std::size_t events, Recording recording) {
    SharedTotals shared{events, recording};
    void* const at =
        ::mmap(nullptr, shared.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return host_error("mapping memory for the counts", errno);
    shared.head_ = static_cast<Head*>(at);
    return shared;
  }
  SharedTotals(SharedTotals&& other) noexcept
      : events_{other.events_}, recording_{other.recording_}, head_{std::exchange(other.head_, nullptr)} {}
  SharedTotals(const SharedTotals&) = delete;
  SharedTotals& operator=(const SharedTotals&) = delete;
  SharedTotals& operator=(SharedTotals&&) = delete;
  ~SharedTotals() {
    if (head_ != nullptr) ::munmap(head_, bytes());
  }

  void put(const TaskTotals& totals) {
    *head_ = {.is_put = true,
              .switches = totals.switches,
              .migrations = totals.migrations,
              .ticks = totals.ticks,
              .all_switches = totals.all_switches,
              .lost_tasks = totals.lost_tasks};
    std::ranges::copy(totals.events, counts().begin());
    head_->lost_regions = totals.lost_regions;
    for (const TaskRegion& region : totals.regions) {
      SharedRegion& shared = head_->regions[head_->used++];
      shared.times = region.times;
      shared.label[region.label.copy(shared.label.data(), shared.label.size() - 1)] = '\0';
      std::ranges::copy(region.events, counts(head_->used).begin());
    }
    if (recording_ == Recording::yes) put_recorded(totals);
  }
  [[nodiscard]] std::optional<TaskTotals> take() const {
    if (!head_->is_put) return std::nullopt;
    std::vector<TaskRegion> regions;
    for (std::size_t i = 0; i < head_->used; ++i)
      regions.push_back({.label = head_->regions[i].label.data(),
                         .times = head_->regions[i].times,
                         .events = {counts(i + 1).begin(), counts(i + 1).end()}});
    std::vector<TaskCode> code;
    for (std::size_t i = 0; i < head_->places; ++i)
      code.push_back({.place = {.rip = place(i)[0], .page = place(i)[1]},
                      .events = {place(i).begin() + place_words, place(i).end()}});
    std::vector<bool> has_places;
    for (std::size_t i = 0; i < events_ && recording_ == Recording::yes; ++i)
      has_places.push_back((head_->has_places >> i & 1U) != 0);
    return TaskTotals{.events = {counts().begin(), counts().end()},
                      .regions = std::move(regions),
                      .code = std::move(code),
                      .has_places = std::move(has_places),
                      .files = files(),
                      .switches = head_->switches,
                      .migrations = head_->migrations,
                      .ticks = head_->ticks,
                      .all_switches = head_->all_switches,
                      .lost_tasks = head_->lost_tasks,
                      .lost_regions = head_->lost_regions};
  }

 private:
  struct SharedRegion {
    std::uint64_t times{};
    std::array<char, ClientRequest::max_label + 1> label{};
  };
  struct Head {
    bool is_put{};
    std::uint64_t switches{}, migrations{}, ticks{}, all_switches{}, lost_tasks{}, lost_regions{};
    std::size_t used{};
    std::array<SharedRegion, TaskCounts::max_regions> regions{};
    std::size_t places{}, name_bytes{};
    std::uint64_t has_places{}, lost_files{};
  };
  static constexpr std::size_t place_words = 2, max_name_bytes = std::size_t{4} << 20U;
  static constexpr std::size_t max_places = 2 * CodeCounts::max_places;

  SharedTotals(std::size_t events, Recording recording) : events_{events}, recording_{recording} {}
  [[nodiscard]] std::size_t counts_words() const { return (1 + TaskCounts::max_regions) * events_; }
  [[nodiscard]] std::size_t bytes() const {
    const std::size_t recorded =
        recording_ == Recording::no ? 0 : max_places * (place_words + events_) * sizeof(std::uint64_t) + max_name_bytes;
    return sizeof(Head) + counts_words() * sizeof(std::uint64_t) + recorded;
  }
  void put_recorded(const TaskTotals& totals) {
    for (std::size_t i = 0; i < totals.has_places.size(); ++i)
      if (totals.has_places[i]) head_->has_places |= std::uint64_t{1} << i;
    for (const TaskCode& code : totals.code) {
      if (head_->places == max_places) break;
      const auto to = place(head_->places++);
      to[0] = code.place.rip;
      to[1] = code.place.page;
      std::ranges::copy(code.events, to.begin() + place_words);
    }
    head_->lost_files = totals.files.lost;
    for (const std::string& name : totals.files.names) {
      if (head_->name_bytes + name.size() + 1 > max_name_bytes) {
        ++head_->lost_files;
        continue;
      }
      std::ranges::copy(name, names() + head_->name_bytes);
      head_->name_bytes += name.size() + 1;
    }
  }
  [[nodiscard]] FileNames files() const {
    FileNames files{.lost = head_->lost_files};
    for (std::size_t at = 0; at < head_->name_bytes; at += std::strlen(names() + at) + 1) files.add(names() + at);
    return files;
  }
  /// The n-th: its address, its page, and its counts.
  [[nodiscard]] std::span<std::uint64_t> place(std::size_t n) const {
    const std::size_t words = place_words + events_;
    return {reinterpret_cast<std::uint64_t*>(head_ + 1) + counts_words() + n * words, words};
  }
  /// Each ends with NUL.
  [[nodiscard]] char* names() const {
    return reinterpret_cast<char*>(place(0).data() + max_places * (place_words + events_));
  }
  /// Of all, or of a region: 1 is the first.
  [[nodiscard]] std::span<std::uint64_t> counts(std::size_t n = 0) const {
    return {reinterpret_cast<std::uint64_t*>(head_ + 1) + n * events_, events_};
  }
  std::size_t events_;
  Recording recording_;
  Head* head_{};
};

}  // namespace

Result<CountedRun> run_counted(const ExecArguments& arguments, const std::vector<TaskEvent>& events,
                               Recording recording, const Meanwhile& meanwhile) {
  VMM_ASSIGN(SharedTotals shared, SharedTotals::create(events.size(), recording));
  const auto act = [&] {
    TaskCounts counts{events};
    if (recording == Recording::yes) counts.record();
    ExecArguments counted = arguments;
    counted.machine.tasks = &counts;
    counted.when_ended = [&] { shared.put(counts.totals()); };
    return run_exec(counted);
  };
  CountedRun run;
  VMM_ASSIGN(run.code, in_child(act, meanwhile));
  run.totals = shared.take();
  if (run.totals && run.totals->all_switches == 0)
    return host_error("the guest's kernel does not go from task to task as Linux does: nothing can be counted", 0,
                      "give a kernel of Linux 4.9 or later with --kernel");
  if (run.totals && run.totals->lost_tasks != 0)
    return host_error(fmt::format("the command had more than {} processes and threads: {} are not counted",
                                  TaskCounts::max_tasks, run.totals->lost_tasks),
                      0, "count it with perf in the guest: `vpmu exec -- perf stat`");
  return run;
}

}  // namespace vmm::tool
