#include "pmu/task_counts.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm {
namespace {

namespace sel = vpmu::reg::perfevtsel;

/// Linux's struct inactive_task_frame: six registers and the return address. Behind it a new task has its struct
/// pt_regs.
constexpr std::uint64_t frame_bytes = 7 * 8, registers_bytes = 21 * 8, cs_in_registers = 17 * 8;
/// TOP_OF_KERNEL_STACK_PADDING, without and with FRED.
constexpr std::array<std::uint64_t, 2> paddings{0, 16};
constexpr std::uint32_t fixed_reference_cycles = 2, rdpmc_fixed = 1U << 30U;

/// Whether it is all that a stack holds. Stacks end at a page's end.
bool is_of_new_task(std::uint64_t stack) {
  return std::ranges::any_of(paddings, [stack](std::uint64_t padding) {
    return (stack + frame_bytes + registers_bytes + padding) % vpmu::page_size == 0;
  });
}

}  // namespace

TaskCounts::TaskCounts(std::vector<TaskEvent> events) : events_{std::move(events)} {
  totals_.events.resize(events_.size());
}

// A command that could not be executed is looked for at another place, and that one counts.
void TaskCounts::mark(unsigned cpu) {
  {
    const std::scoped_lock lock{mutex_};
    ++marks_;
    marked_cpu_ = cpu;
    tasks_ = {{unknown, Task{.cpu = cpu}}};
    collects_ = true;
    collected_.assign(events_.size(), 0);
    totals_ = {.events = std::vector<std::uint64_t>(events_.size())};
    code_.clear();
  }
  if (kick_) kick_();
}

TaskTotals TaskCounts::totals() const {
  TaskTotals totals = totals_;
  for (const auto& [place, events] : code_) totals.code.push_back({.place = place, .events = events});
  return totals;
}

std::optional<std::size_t> TaskCounts::region(const std::string& label) {
  std::vector<TaskRegion>& regions = totals_.regions;
  const auto found = std::ranges::find(regions, label, &TaskRegion::label);
  if (found != regions.end()) return static_cast<std::size_t>(found - regions.begin());
  if (regions.size() == max_regions) {
    ++totals_.lost_regions;
    return std::nullopt;
  }
  regions.push_back({.label = label, .events = std::vector<std::uint64_t>(events_.size())});
  return regions.size() - 1;
}

void TaskCounts::add(std::span<const std::uint64_t> events, const Task* task) {
  const auto add_to = [events](std::vector<std::uint64_t>& sums) {
    for (std::size_t i = 0; i < events.size(); ++i) sums[i] += events[i];
  };
  add_to(totals_.events);
  if (collects_) add_to(collected_);
  if (task == nullptr) return;
  // One that is open twice counts once.
  for (std::size_t i = 0; i < task->open.size(); ++i)
    if (std::find(task->open.begin(), task->open.begin() + static_cast<std::ptrdiff_t>(i), task->open[i]) ==
        task->open.begin() + static_cast<std::ptrdiff_t>(i))
      add_to(totals_.regions[task->open[i]].events);
}

void TaskCounts::request(const ClientRequest& request, Task& task) {
  using Kind = ClientRequest::Kind;
  switch (request.kind) {
    case Kind::start_instrumentation: collects_ = true; break;
    case Kind::stop_instrumentation: collects_ = false; break;
    case Kind::toggle_collect: collects_ = !collects_; break;
    case Kind::zero_stats: std::ranges::fill(collected_, 0); break;
    case Kind::dump_stats: {
      const std::vector<std::uint64_t> collected =
          std::exchange(collected_, std::vector<std::uint64_t>(events_.size()));
      if (const auto to = region(request.label)) {
        ++totals_.regions[*to].times;
        for (std::size_t i = 0; i < collected.size(); ++i) totals_.regions[*to].events[i] += collected[i];
      }
      break;
    }
    case Kind::begin_region: {
      const auto begun = task.open.size() < max_depth ? region(request.label) : std::nullopt;
      if (task.open.size() >= max_depth) ++totals_.lost_regions;
      if (!begun) break;
      ++totals_.regions[*begun].times;
      task.open.push_back(*begun);
      break;
    }
    case Kind::end_region:
      if (!task.open.empty()) task.open.pop_back();
      break;
  }
}

TaskCounter::TaskCounter(TaskCounts& all, unsigned cpu, const vpmu::PmuConfig& pmu, vpmu::GuestEnv& env,
                         const TaskMemory& memory)
    : all_{&all}, cpu_{cpu}, config_{pmu}, env_{&env} {
  config_.smt = false;
  config_.trace = nullptr;
  for (const TaskEvent& event : all.events()) place(event);
  if (!all.records_) return;
  std::vector<CodeEvent> events;
  for (const Place& place : places_) events.push_back({.plan = place.pmu, .counter = *vpmu::rdpmc_counter(place.ecx)});
  where_ = std::make_unique<CodeCounts>(std::move(events), memory.word);
  files_.emplace(memory.program);
}

TaskCounter::~TaskCounter() {
  end();
  if (!where_) return;
  const std::scoped_lock lock{all_->mutex_};
  where_->visit([this](const CodePlace& place, std::span<const std::uint64_t> counts) {
    auto& sums = all_->code_.try_emplace(place, counts.size()).first->second;
    for (std::size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i];
  });
  all_->totals_.has_places.resize(places_.size());
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (where_->tells(i)) all_->totals_.has_places[i] = true;
  all_->totals_.files.merge(files_->names());
}

/// Gives it a counter, and a PMU whose other registers suit it.
void TaskCounter::place(const TaskEvent& event) {
  using vpmu::MsrIndex;
  namespace msr = vpmu::msr;
  constexpr std::uint8_t second_offcore = 0xBB;
  const bool is_fixed = sel::EVENT::get(event.select) == 0;
  const MsrIndex offcore = sel::EVENT::get(event.select) == second_offcore
                               ? MsrIndex{msr::MSR_OFFCORE_RSP_0.value() + 1}
                               : msr::MSR_OFFCORE_RSP_0;
  const auto is_free = [](const vpmu::Pmu& pmu, MsrIndex at) { return pmu.rdmsr(at).value == 0; };
  const auto takes = [&](const vpmu::Pmu& pmu, unsigned n) {
    if (is_fixed) return n == 0 && is_free(pmu, msr::IA32_FIXED_CTR_CTRL);
    return is_free(pmu, MsrIndex{msr::IA32_PERFEVTSEL0.value() + n}) && (!event.offcore || is_free(pmu, offcore)) &&
           (!event.frontend || is_free(pmu, msr::MSR_PEBS_FRONTEND));
  };
  const unsigned counters = vpmu::describe(config_.generation).gp_counters_no_smt;
  for (std::size_t i = 0;; ++i) {
    if (i == pmus_.size()) pmus_.emplace_back(config_);
    vpmu::Pmu& pmu = pmus_[i];
    unsigned n = 0;
    while (n < counters && !takes(pmu, n)) ++n;
    if (n == counters) continue;
    if (event.offcore) (void)pmu.wrmsr(offcore, *event.offcore);
    if (event.frontend) (void)pmu.wrmsr(msr::MSR_PEBS_FRONTEND, *event.frontend);
    if (is_fixed) {
      const std::uint64_t levels = (sel::OS::test(event.select) ? 1U : 0U) | (sel::USR::test(event.select) ? 2U : 0U);
      (void)pmu.wrmsr(msr::IA32_FIXED_CTR_CTRL,
                      levels << (vpmu::reg::fixed_ctr_ctrl::bits_per_counter * fixed_reference_cycles));
    } else {
      (void)pmu.wrmsr(MsrIndex{msr::IA32_PERFEVTSEL0.value() + n}, event.select | sel::EN::mask);
    }
    constexpr unsigned first_fixed = 32;
    const std::uint64_t fixed = vpmu::low_bits(vpmu::describe(config_.generation).fixed_counters) << first_fixed;
    (void)pmu.wrmsr(msr::IA32_PERF_GLOBAL_CTRL, vpmu::low_bits(counters) | fixed);
    places_.push_back({.pmu = i, .ecx = is_fixed ? rdpmc_fixed | fixed_reference_cycles : n});
    return;
  }
}

bool TaskCounter::is_marked() const {
  const std::scoped_lock lock{all_->mutex_};
  return seen_marks_ != all_->marks_;
}

std::vector<vpmu::CountPlan> TaskCounter::take_mark() {
  {
    const std::scoped_lock lock{all_->mutex_};
    seen_marks_ = all_->marks_;
    awaits_call_ = all_->marked_cpu_ == cpu_;
    counts_ = false;
    if (where_) where_->collect(false);
    if (where_) where_->clear();
  }
  std::vector<vpmu::CountPlan> plans;
  for (const vpmu::Pmu& pmu : pmus_) plans.push_back(pmu.plan());
  return plans;
}

void TaskCounter::settle(std::span<const vpmu::CountDeltas> deltas) {
  for (std::size_t i = 0; i < deltas.size(); ++i) pmus_[i].settle(deltas[i], *env_);
}

void TaskCounter::retire(const vpmu::Retirement& retired) {
  for (vpmu::Pmu& pmu : pmus_) pmu.retire(retired, *env_);
  if (retired.cpl == 0 || retired.branch.kind != vpmu::BranchKind::far) return;
  if (files_ && (counts_ || awaits_call_) && retired.registers != nullptr) files_->called(*retired.registers);
  // The system call itself is the last instruction of whoever starts the command.
  if (!awaits_call_) return;
  awaits_call_ = false;
  task_ = TaskCounts::unknown;
  begin();
}

std::vector<std::uint64_t> TaskCounter::values() const {
  std::vector<std::uint64_t> values;
  for (const Place& place : places_) values.push_back(pmus_[place.pmu].rdpmc(place.ecx, 0, false).value_or(0));
  return values;
}

void TaskCounter::begin() {
  counts_ = true;
  if (where_) where_->collect(true);
  before_ = values();
  began_ = env_->tsc();
}

void TaskCounter::end() {
  if (!std::exchange(counts_, false)) return;
  if (where_) where_->collect(false);
  std::vector<std::uint64_t> counted = values();
  for (std::size_t i = 0; i < counted.size(); ++i)
    counted[i] = (counted[i] - before_[i]) & vpmu::low_bits(vpmu::describe(config_.generation).counter_width);
  const std::scoped_lock lock{all_->mutex_};
  const auto task = all_->tasks_.find(task_);
  all_->add(counted, task == all_->tasks_.end() ? nullptr : &task->second);
  all_->totals_.ticks += env_->tsc() - began_;
}

void TaskCounter::requested(const ClientRequest& request) {
  if (!counts_) return;
  end();
  {
    const std::scoped_lock lock{all_->mutex_};
    const auto task = all_->tasks_.find(task_);
    if (task != all_->tasks_.end()) all_->request(request, task->second);
  }
  begin();
}

/// Whether this stack's task is new, and a program has made it, and no kernel thread.
bool TaskCounter::is_made_by_program(std::uint64_t stack) const {
  std::array<std::byte, sizeof(std::uint64_t)> bytes{};
  const vpmu::GuestLinear at{stack + frame_bytes + cs_in_registers};
  if (env_->read_linear(at, bytes)) return false;
  std::uint64_t cs{};
  std::memcpy(&cs, bytes.data(), sizeof cs);
  return (cs & 3U) == 3U;
}

void TaskCounter::switched(const StackSwitch& to) {
  if (seen_marks_ == 0 || awaits_call_) return;
  const bool counted = counts_;
  end();
  if (files_) files_->switched();
  const bool is_new = is_of_new_task(to.stack);
  const bool is_own = is_new && is_made_by_program(to.stack);
  {
    const std::scoped_lock lock{all_->mutex_};
    auto& tasks = all_->tasks_;
    ++all_->totals_.all_switches;
    if (counted) {
      ++all_->totals_.switches;
      // Now its address is known.
      if (task_ == TaskCounts::unknown)
        if (auto task = tasks.extract(task_)) {
          task.key() = to.from;
          tasks.erase(to.from);
          tasks.insert(std::move(task));
        }
    }
    // Linux uses the address of a task that has ended again.
    if (is_new) tasks.erase(to.to);
    if (is_own && tasks.size() < TaskCounts::max_tasks) tasks.emplace(to.to, TaskCounts::Task{});
    const auto next = tasks.find(to.to);
    if (next == tasks.end()) {
      if (is_own) ++all_->totals_.lost_tasks;
      return;
    }
    const auto last = std::exchange(next->second.cpu, cpu_);
    if (last && *last != cpu_) ++all_->totals_.migrations;
    task_ = to.to;
  }
  begin();
}

}  // namespace vmm
