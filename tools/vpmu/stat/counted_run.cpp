#include "stat/counted_run.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include <fmt/format.h>

#include "exec/exec.hpp"

namespace vmm::tool {
namespace {

/// Memory that the child shares, for it can open no file once it is confined.
class SharedTotals {
 public:
  static Result<SharedTotals> create(std::size_t events) {
    SharedTotals shared{events};
    void* const at = ::mmap(nullptr, shared.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return host_error("mapping memory for the counts", errno);
    shared.head_ = static_cast<Head*>(at);
    return shared;
  }
  SharedTotals(SharedTotals&& other) noexcept : events_{other.events_}, head_{std::exchange(other.head_, nullptr)} {}
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
  }
  [[nodiscard]] std::optional<TaskTotals> take() const {
    if (!head_->is_put) return std::nullopt;
    std::vector<TaskRegion> regions;
    for (std::size_t i = 0; i < head_->used; ++i)
      regions.push_back({.label = head_->regions[i].label.data(),
                         .times = head_->regions[i].times,
                         .events = {counts(i + 1).begin(), counts(i + 1).end()}});
    return TaskTotals{.events = {counts().begin(), counts().end()},
                      .regions = std::move(regions),
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
  };
  explicit SharedTotals(std::size_t events) : events_{events} {}
  [[nodiscard]] std::size_t bytes() const {
    return sizeof(Head) + (1 + TaskCounts::max_regions) * events_ * sizeof(std::uint64_t);
  }
  /// Of all, or of a region: 1 is the first.
  [[nodiscard]] std::span<std::uint64_t> counts(std::size_t n = 0) const {
    return {reinterpret_cast<std::uint64_t*>(head_ + 1) + n * events_, events_};
  }
  std::size_t events_;
  Head* head_{};
};

}  // namespace

Result<CountedRun> run_counted(const ExecArguments& arguments, const std::vector<TaskEvent>& events,
                               const Meanwhile& meanwhile) {
  VMM_ASSIGN(SharedTotals shared, SharedTotals::create(events.size()));
  const auto act = [&] {
    TaskCounts counts{events};
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
