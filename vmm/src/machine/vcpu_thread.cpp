#include "machine/vcpu_thread.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "decode/instruction.hpp"
#include "kvm/kick.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

/// The main thread handles the process's signals; here only the kick is let through.
void block_process_signals() {
  sigset_t blocked;
  ::sigfillset(&blocked);
  for (const int signal : {kick_signal(), SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS}) {
    ::sigdelset(&blocked, signal);
  }
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

/// Includes the instruction if KVM reports its bytes: flags, then their number, then the bytes.
std::string describe(const InternalError& error) {
  std::string text = fmt::format("KVM internal error {}: KVM cannot emulate an instruction", error.suberror);
  if (error.suberror != KVM_INTERNAL_ERROR_EMULATION ||
      (error.data[0] & KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES) == 0)
    return text;
  const auto rest = std::as_bytes(std::span{error.data}).subspan(sizeof error.data[0]);
  const auto code = rest.subspan(1, std::min<std::size_t>(std::to_integer<std::size_t>(rest[0]), 15));
  return text + ", " + disassemble(code, CodeMode::bits64);
}

}  // namespace

VcpuThread::VcpuThread(VcpuServices services, unsigned id, std::unique_ptr<Processor> processor, GuestVcpuFactory make,
                       Bytes image)
    : services_{std::move(services)},
      id_{id},
      processor_{std::move(processor)},
      make_{std::move(make)},
      image_{std::move(image)} {}

VcpuThread::~VcpuThread() {
  ask_to_stop();
  join();
}

void VcpuThread::start() {
  const std::scoped_lock lock{mutex_};
  thread_ = std::thread{[this] { thread_main(); }};  // may throw
  running_ = true;
}

void VcpuThread::kick_if_running() {
  const std::scoped_lock lock{mutex_};
  if (running_) kick_out();
}

/// Under mutex_.
void VcpuThread::kick_out() {
  kick_watch_.kicked();
  kick(thread_.native_handle());
  processor_->kicked();
  published_changed_.notify_all();
}

void VcpuThread::ask_to_stop() {
  stop_ = true;
  resume();
  kick_if_running();
}

void VcpuThread::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void VcpuThread::thread_main() {
  block_process_signals();
  ::pthread_setname_np(::pthread_self(), fmt::format("vcpu{}", id_).c_str());
  {
    const KickTarget target{processor_->kick_flag()};
    if (auto ran = run_guest(); !ran) {
      services_.fail(std::move(ran).error());
    }
    processor_->close();
  }
  const std::scoped_lock lock{mutex_};
  running_ = false;
  published_changed_.notify_all();
}

/// Starts the vCPU, or restores it from the image.
Result<std::unique_ptr<GuestVcpu>> VcpuThread::begin(VcpuBackend*& backend) {
  const Bytes image = std::exchange(image_, {});
  ByteReader in{image};
  const auto processor = in.get_run();
  const auto pmu = in.get_run();
  const bool restores = !image.empty();
  if (restores && !in.done())
    return usage_error(fmt::format("the snapshot's vCPU {} is cut short", id_), version_advice);
  if (restores) VMM_TRY(processor_->restore(processor));
  VMM_ASSIGN(backend, processor_->open());
  VMM_ASSIGN(auto vcpu, make_(*backend));
  if (restores) VMM_TRY(vcpu->restore(pmu));
  return vcpu;
}

Result<Bytes> VcpuThread::image_of(GuestVcpu& vcpu) {
  VMM_ASSIGN(const Bytes pmu, vcpu.save());
  VMM_ASSIGN(const Bytes processor, processor_->save());
  ByteWriter out;
  out.put_run(processor);
  out.put_run(pmu);
  return out.take();
}

void VcpuThread::rest(GuestVcpu& vcpu) {
  publish(vcpu);
  processor_->let_go();
  std::unique_lock lock{mutex_};
  paused_ = true;
  published_changed_.notify_all();
  while (pause_wanted_) {
    if (std::exchange(save_wanted_, false)) {
      saved_ = image_of(vcpu);
      published_changed_.notify_all();
    }
    published_changed_.wait(lock, [this] { return !pause_wanted_ || save_wanted_; });
  }
  paused_ = false;
}

/// Waits until another thread wants something of this vCPU.
void VcpuThread::wait_until_asked() {
  processor_->let_go();
  std::unique_lock lock{mutex_};
  published_changed_.wait(lock, [this] { return stop_ || pause_wanted_ || statistics_wanted_; });
}

void VcpuThread::pause() {
  pause_wanted_ = true;
  kick_if_running();
}

Result<void> VcpuThread::wait_until_paused() {
  std::unique_lock lock{mutex_};
  published_changed_.wait(lock, [this] { return paused_ || !running_; });
  if (!paused_) return host_error(fmt::format("vCPU {} has stopped", id_), 0, "only a machine that runs can be saved");
  return {};
}

Result<Bytes> VcpuThread::save() {
  std::unique_lock lock{mutex_};
  VMM_ASSERT(paused_);
  save_wanted_ = true;
  published_changed_.notify_all();
  published_changed_.wait(lock, [this] { return saved_.has_value(); });
  return *std::exchange(saved_, std::nullopt);
}

void VcpuThread::resume() {
  const std::scoped_lock lock{mutex_};
  pause_wanted_ = false;
  published_changed_.notify_all();
}

Result<void> VcpuThread::run_guest() {
  VcpuBackend* backend = nullptr;
  VMM_ASSIGN(const auto vcpu, begin(backend));
  if (services_.confine) VMM_TRY(services_.confine());
  Result<void> result{};
  kick_watch_.forget();
  bool completed = true;  // KVM has no exit left to complete; true after a kick
  // Requests are checked before the guest runs: a kick that came before KickTarget knew this thread is lost.
  while (result && !stop_) {
    kick_watch_.looked();
    serve_statistics(*vcpu);
    if (pause_wanted_ && completed) {
      rest(*vcpu);
      kick_watch_.forget();
    }
    // After the pause: what has come meanwhile is there before the guest goes on. Loaded first: a store at each exit
    // would take the cache line from the other vCPUs.
    if (services_.attention.load(std::memory_order_relaxed) && services_.attention.exchange(false)) services_.attend();
    if (stop_) break;
    auto exit = vcpu->run();
    completed = exit && (std::holds_alternative<Interrupted>(*exit) || std::holds_alternative<TimeUp>(*exit));
    result = exit ? answer(*backend, *exit) : Failure{std::move(exit).error()};
  }
  processor_->let_go();  // taking this vCPU down takes time
  publish(*vcpu);
  return result;
}

Result<void> VcpuThread::answer(VcpuBackend& backend, const Exit& exit) {
  const auto cannot_go_on = [&](const std::string& what) -> Result<void> {
    return Failure{exit_failure(backend, what)};
  };
  return std::visit(
      overload{
          [&](const PortRead& access) -> Result<void> {
            ++exits_.port_reads;
            services_.ports.read(access);
            return {};
          },
          [&](const PortWrite& access) -> Result<void> {
            ++exits_.port_writes;
            services_.ports.write(access);
            return {};
          },
          [&](const MmioRead& access) -> Result<void> {
            ++exits_.mmio_reads;
            std::ranges::fill(access.data, std::byte{0xFF});
            services_.mmio.mmio_read(access.at, access.data);
            return {};
          },
          [&](const MmioWrite& access) -> Result<void> {
            ++exits_.mmio_writes;
            services_.mmio.mmio_write(access.at, access.data);
            return {};
          },
          [&](const Interrupted& /*exit*/) -> Result<void> {
            ++exits_.interrupted;
            return {};
          },
          [&](const Shutdown& /*exit*/) -> Result<void> {
            ++exits_.other;
            services_.machine.request_stop(StopReason::triple_fault);
            return {};
          },
          // A processor in software is halted for good.
          [&](const Hlt& /*exit*/) -> Result<void> {
            ++exits_.other;
            services_.machine.request_stop(StopReason::power_off);
            return {};
          },
          // It has used up its ticks.
          [&](const TimeUp& /*exit*/) -> Result<void> {
            ++exits_.other;
            services_.time_up();
            wait_until_asked();
            return {};
          },
          [&](const EntryFailed& failure) {
            return cannot_go_on(fmt::format("the CPU refused the guest state, reason {:#x}", failure.reason));
          },
          [&](const InternalError& error) { return cannot_go_on(describe(error)); },
          [&](const Unknown& unknown) {
            return cannot_go_on(fmt::format("unexpected KVM exit reason {}", unknown.reason));
          },
          [&](const SystemEvent& event) {
            return cannot_go_on(fmt::format("unexpected KVM system event {}", event.type));
          },
          // Exits of the PMU, which PmuVcpu handles itself.
          [&](const auto& /*exit*/) { return cannot_go_on("an exit for the PMU was not handled by it"); },
      },
      exit);
}

Error VcpuThread::exit_failure(VcpuBackend& backend, const std::string& what) {
  ++exits_.other;
  const auto regs = backend.regs();
  const std::uint64_t rip = regs ? regs->rip : 0;
  return Error{.kind = ErrorKind::host,
               .what = fmt::format("vCPU {} stopped at RIP {:#x}: {}", id_, rip, what),
               .advice = "see the host's kernel log"};
}

void VcpuThread::publish(const GuestVcpu& vcpu) {
  std::vector<Statistic> counters{{"exits.port_read", exits_.port_reads},    {"exits.port_write", exits_.port_writes},
                                  {"exits.mmio_read", exits_.mmio_reads},    {"exits.mmio_write", exits_.mmio_writes},
                                  {"exits.interrupted", exits_.interrupted}, {"exits.other", exits_.other}};
  vcpu.visit_statistics(
      [&counters](std::string_view name, std::uint64_t value) { counters.push_back({std::string{name}, value}); });
  const std::scoped_lock lock{mutex_};
  published_ = std::move(counters);
  ++publications_;
  published_changed_.notify_all();
}

void VcpuThread::serve_statistics(const GuestVcpu& vcpu) {
  if (statistics_wanted_.exchange(false)) {
    publish(vcpu);
  }
}

VcpuStatistics VcpuThread::statistics() {
  constexpr std::chrono::seconds patience{1};
  std::unique_lock lock{mutex_};
  if (running_ && !paused_) {
    const auto before = publications_;
    statistics_wanted_ = true;
    kick_out();
    if (!published_changed_.wait_for(lock, patience, [&] { return publications_ != before || !running_; }))
      services_.log.warning("vCPU {} has not left its guest within {} s: its counters are the last known ones", id_,
                            patience.count());
  }
  VcpuStatistics all{.id = id_, .counters = published_};
  add_kicks(all.counters, kick_watch_);
  return all;
}

}  // namespace vmm
