#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pmu/client_requests.hpp"
#include "pmu/named_files.hpp"
#include "sources/code_counts.hpp"
#include "sources/source.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

/// An event to be counted, as a program of the guest would select it.
struct TaskEvent {
  /// IA32_PERFEVTSELx without EN and INT: the event, its conditions and privilege levels. Without a code: the fixed
  /// counter of reference cycles.
  std::uint64_t select{};
  std::optional<std::uint64_t> offcore;   ///< MSR_OFFCORE_RSP_0, or of code BBH MSR_OFFCORE_RSP_1.
  std::optional<std::uint64_t> frontend;  ///< MSR_PEBS_FRONTEND.
};

/// What the command counted under a label, by client requests (client_requests.hpp).
struct TaskRegion {
  std::string label;
  std::uint64_t times{};              ///< How often it was begun or dumped.
  std::vector<std::uint64_t> events;  ///< By TaskEvent; of all times.
};

/// What was counted where.
struct TaskCode {
  CodePlace place;
  std::vector<std::uint64_t> events;  ///< By TaskEvent.
};

/// What the tasks have done.
struct TaskTotals {
  std::vector<std::uint64_t> events;  ///< By TaskEvent.
  std::vector<TaskRegion> regions{};  ///< In the order in which they were first there; at most TaskCounts::max_regions.
  std::vector<TaskCode> code{};       ///< By place; empty unless TaskCounts::record().
  std::vector<bool> has_places{};     ///< By TaskEvent: `code` has all of that event. The same.
  FileNames files{};                  ///< That they have opened or executed, or tried to. The same.
  std::uint64_t switches{};           ///< From one of the tasks to another task of the guest.
  std::uint64_t migrations{};         ///< One of them went on on another CPU.
  std::uint64_t ticks{};              ///< Of the TSC, while one of them had a CPU; sums over CPUs.
  std::uint64_t all_switches{};       ///< Of the whole guest, since the command began.
  std::uint64_t lost_tasks{};         ///< Not counted: there were more than TaskCounts::max_tasks.
  std::uint64_t lost_regions{};       ///< Begun or dumped under one label too many, or one in too many others.
};

/// Counts the events of a command in a Linux guest, beside the guest's own PMU, which is not used: those of one task,
/// and of all that it and they make (fork, threads, vfork). For one machine; each vCPU has a TaskCounter.
///
/// The guest says by task_mark_leaf where the command begins. From there on the engine tells where Linux goes from one
/// task to another, which has been one instruction in `__switch_to_asm` since Linux 4.9: MOV RSP, [RSI + offset of
/// thread.sp], with the tasks' addresses in RDI and RSI. A new task's stack then holds nothing but what copy_thread()
/// has put there: a frame for the switch, and the registers of the system call that has made it; a kernel thread has
/// none.
class TaskCounts {
 public:
  /// At a time, or one after the other at addresses of their own.
  static constexpr std::size_t max_tasks = 1U << 16U;
  static constexpr std::size_t max_regions = 256, max_depth = 64;

  explicit TaskCounts(std::vector<TaskEvent> events);
  [[nodiscard]] const std::vector<TaskEvent>& events() const { return events_; }
  /// `kick` makes each vCPU leave the guest soon, after a mark.
  void kick_by(std::function<void()> kick) { kick_ = std::move(kick); }
  /// The totals shall say, too, which code has counted what, and which files the tasks have opened. Before there are
  /// vCPUs.
  void record() { records_ = true; }
  /// The guest has executed the mark on this vCPU. On its thread.
  void mark(unsigned cpu);
  /// Once no vCPU runs any more.
  [[nodiscard]] TaskTotals totals() const;

 private:
  friend class TaskCounter;
  std::vector<TaskEvent> events_;
  std::function<void()> kick_;
  bool records_{};
  mutable std::mutex mutex_;
  std::uint64_t marks_{};  ///< So far. Under mutex_, as what follows.
  unsigned marked_cpu_{};  ///< The last one's.
  struct Task {
    std::optional<unsigned> cpu{};    ///< Where it ran last; empty: nowhere yet.
    std::vector<std::size_t> open{};  ///< Regions that it is in, by their numbers; the innermost is the last.
  };
  /// Of a task that the kernel has not gone away from yet, so that its address is not known.
  static constexpr std::uint64_t unknown = 0;

  /// The number of the region with that label; empty: there are too many.
  std::optional<std::size_t> region(const std::string& label);
  void add(std::span<const std::uint64_t> events, const Task* task);
  void request(const ClientRequest& request, Task& task);

  /// Those that are counted, by their addresses.
  std::map<std::uint64_t, Task> tasks_;
  TaskTotals totals_;
  bool collects_{true};                   ///< CALLGRIND_TOGGLE_COLLECT, and START and STOP.
  std::vector<std::uint64_t> collected_;  ///< Since the last dump or zero.
  std::map<CodePlace, std::vector<std::uint64_t>> code_;
};

/// What a recorder must see of a guest's memory.
struct TaskMemory {
  CodeCounts::ReadWord word;  ///< Physical.
  NamedFiles::Read program;
};

/// The part of one vCPU: as many PMUs of its generation as the events need. Used on the vCPU's thread.
class TaskCounter {
 public:
  /// All must outlive it.
  TaskCounter(TaskCounts& all, unsigned cpu, const vpmu::PmuConfig& pmu, vpmu::GuestEnv& env,
              const TaskMemory& memory = {});
  ~TaskCounter();
  TaskCounter(const TaskCounter&) = delete;
  TaskCounter& operator=(const TaskCounter&) = delete;
  TaskCounter(TaskCounter&&) = delete;
  TaskCounter& operator=(TaskCounter&&) = delete;

  /// Whether there is a mark that take_mark() has not seen.
  [[nodiscard]] bool is_marked() const;
  /// The plans to be counted from now on.
  std::vector<vpmu::CountPlan> take_mark();
  /// Where the source tells which code has counted; null: nobody wants to know.
  [[nodiscard]] CodeCounts* where() { return where_.get(); }
  /// What the source has told since the last call.
  void settle(std::span<const vpmu::CountDeltas> deltas);
  void retire(const vpmu::Retirement& retired);
  void switched(const StackSwitch& to);
  /// By the task that runs.
  void requested(const ClientRequest& request);

 private:
  /// Where an event is counted.
  struct Place {
    std::size_t pmu{};
    std::uint32_t ecx{};  ///< As RDPMC takes it.
  };
  void place(const TaskEvent& event);
  [[nodiscard]] std::vector<std::uint64_t> values() const;
  void begin();
  void end();
  [[nodiscard]] bool is_made_by_program(std::uint64_t stack) const;

  TaskCounts* all_;
  unsigned cpu_;
  vpmu::PmuConfig config_;
  vpmu::GuestEnv* env_;
  std::vector<vpmu::Pmu> pmus_;
  std::vector<Place> places_;
  std::uint64_t seen_marks_{};
  bool awaits_call_{};                 ///< The mark was here, and no system call yet.
  bool counts_{};                      ///< The task that runs here is counted.
  std::vector<std::uint64_t> before_;  ///< values() when it began.
  std::uint64_t began_{};              ///< The time then.
  std::uint64_t task_{};               ///< The address of the one that is counted.
  std::unique_ptr<CodeCounts> where_;  ///< Null: nobody wants to know.
  std::optional<NamedFiles> files_;    ///< The same.
};

}  // namespace vmm
