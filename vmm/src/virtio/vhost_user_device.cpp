#include "virtio/vhost_user_device.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <system_error>

#include "support/assert.hpp"

namespace vmm::virtio {
namespace {

// Virtio 1.2 section 6. The rings are split ones. With Answers::before_return two more are refused: a daemon that omits
// used-ring entries cannot be waited for, and one that uses event indices chooses itself when it is notified.
constexpr std::uint64_t f_event_index = 1ULL << 29U, f_ring_packed = 1ULL << 34U, f_in_order = 1ULL << 35U;

/// A driver may have disabled the device's interrupts, which also wake us: how long until we look without one.
constexpr long first_look_ns = 50'000, last_look_ns = 2'000'000;

void signal_event(const Fd& event) {
  const std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof one);  // fails only if the counter is full, and then it is signalled
}

void drain_event(int event) {
  std::uint64_t count = 0;
  // Never blocks.
  (void)!::read(event, &count, sizeof count);  // NOLINT(clang-analyzer-unix.BlockInCriticalSection)
}

Result<Fd> make_event() {
  Fd event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!event.valid()) return host_error("eventfd", errno);
  return event;
}

constexpr unsigned saving_looks = 1000;
constexpr std::chrono::milliseconds saving_look{1};

bool hung_up(const pollfd& socket) { return (socket.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0; }

}  // namespace

VhostUserDevice::VhostUserDevice(VhostUser back_end, const GuestMemory& memory, Options options)
    : back_end_{std::move(back_end)},
      memory_{&memory},
      options_{std::move(options)},
      features_{(back_end_.features() & options_.features & ~f_ring_packed) | f_version_1} {
  if (options_.answers == Answers::before_return) features_ &= ~(f_event_index | f_in_order);
}

Result<std::unique_ptr<VhostUserDevice>> VhostUserDevice::create(VhostUserPeer peer, const GuestMemory& memory,
                                                                 Options options) {
  VMM_ASSIGN(auto back_end, VhostUser::connect(std::move(peer), memory));
  const std::size_t wanted = options.queue_sizes.size();
  if (back_end.queues() && *back_end.queues() < wanted)
    return Failure{back_end.channel().failed_peer(
        fmt::format("the daemon has {} queues, and {} are needed", *back_end.queues(), wanted),
        "start it with more queues")};
  if (const auto* const theirs = std::get_if<FromBackEnd>(&options.configuration)) {
    std::vector<std::byte> tried(theirs->bytes);
    VMM_TRY(back_end.read_configuration(tried));
  }
  std::unique_ptr<VhostUserDevice> device{new VhostUserDevice{std::move(back_end), memory, std::move(options)}};
  VMM_TRY(device->make_events());
  return device;
}

Result<void> VhostUserDevice::make_events() {
  VMM_ASSIGN(interrupt_, make_event());
  back_end_.give_up_when(interrupt_.get());
  for (std::size_t number = 0; number < options_.queue_sizes.size(); ++number) {
    auto queue = std::make_unique<Queue>();
    VMM_ASSIGN(queue->kick, make_event());
    VMM_ASSIGN(queue->call, make_event());
    queue->asynchronous = std::ranges::count(options_.asynchronous, number) != 0;
    queues_.push_back(std::move(queue));
  }
  return {};
}

VhostUserDevice::~VhostUserDevice() {
  cancel();
  if (watcher_.joinable()) watcher_.join();
}

void VhostUserDevice::cancel() {
  interrupted_ = true;
  signal_event(interrupt_);
}

const Fd* VhostUserDevice::notify_event(unsigned queue) const {
  return options_.answers == Answers::by_kvm && queue < queues_.size() ? &queues_[queue]->kick : nullptr;
}

const Fd* VhostUserDevice::used_event(unsigned queue) const {
  return options_.answers == Answers::by_kvm && queue < queues_.size() ? &queues_[queue]->call : nullptr;
}

void VhostUserDevice::fail(Error error) {
  DeviceEvents* const events = events_;
  if (events != nullptr && !interrupted_ && !failed_.exchange(true)) events->failed(std::move(error));
}

void VhostUserDevice::read_configuration(std::uint32_t offset, std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{0});
  std::vector<std::byte> fetched;
  if (const auto* const theirs = std::get_if<FromBackEnd>(&options_.configuration)) {
    fetched.resize(theirs->bytes);
    if (auto outcome = back_end_.read_configuration(fetched); !outcome) return fail(std::move(outcome.error()));
  }
  const auto* const ours = std::get_if<std::vector<std::byte>>(&options_.configuration);
  const std::span<const std::byte> all{ours != nullptr ? *ours : fetched};
  if (offset >= all.size()) return;
  const auto there = all.subspan(offset, std::min(out.size(), all.size() - offset));
  std::ranges::copy(there, out.begin());
}

void VhostUserDevice::write_configuration(std::uint32_t offset, std::span<const std::byte> in) {
  if (!std::holds_alternative<FromBackEnd>(options_.configuration)) return;
  // A driver's write to a read-only place must not stop the machine: a daemon that still answers refuses the write, and
  // nothing else happens.
  if (auto outcome = back_end_.write_configuration(offset, in); !outcome && back_end_.channel().is_broken())
    fail(std::move(outcome.error()));
}

Result<void> VhostUserDevice::start(const DriverSetup& setup) { return run(setup, true); }

/// Gives the rings to the daemon, as they are or as at the beginning.
Result<void> VhostUserDevice::run(const DriverSetup& setup, bool anew) {
  if (setup.rings.size() != queues_.size())
    return host_error(fmt::format("{} rings for {} queues", setup.rings.size(), queues_.size()));
  setup_ = setup;
  std::vector<VhostUser::QueueEvents> events;
  for (std::size_t number = 0; number < queues_.size(); ++number) {
    Queue& queue = *queues_[number];
    events.push_back({.kick = queue.kick.get(), .call = queue.call.get()});
    if (!setup.rings[number]) continue;
    VMM_TRY(check_ring(*setup.rings[number], *memory_));
    const std::lock_guard lock{queue.mutex};
    queue.ring.emplace(*setup.rings[number], *memory_);
    if (anew) queue.ring->clear_used();
    events.back().first = queue.seen = queue.ring->used();
  }
  stopping_ = false;
  auto outcome = back_end_.start(setup, events);
  if (!outcome) forget_rings();
  return outcome;
}

/// Waits until the daemon has answered all that a queue has asked for, or for a second.
Result<void> VhostUserDevice::come_to_rest(unsigned number) {
  Queue& queue = *queues_[number];
  const std::lock_guard lock{queue.mutex};
  if (!queue.ring) return {};
  if (type() == DeviceType::file_system && queue.ring->was_used())
    return usage_error("cannot save a guest that has mounted a shared directory: only the daemon knows its open files",
                       "save it before it mounts one");
  // Of an asynchronous queue a daemon takes a buffer when it needs one.
  if (queue.asynchronous) return {};
  for (unsigned n = 0; n < saving_looks && !interrupted_ && queue.ring->available() != queue.ring->used(); ++n)
    std::this_thread::sleep_for(saving_look);
  const auto open = static_cast<std::uint16_t>(queue.ring->available() - queue.ring->used());
  if (open == 0) return {};
  return Failure{back_end_.channel().failed_peer(
      fmt::format("it has not answered {} requests of queue {} for a second: the guest cannot be saved", open, number),
      "save the guest when it is idle")};
}

Result<void> VhostUserDevice::save(ByteWriter& /*out*/) {
  for (unsigned number = 0; number < queues_.size(); ++number) VMM_TRY(come_to_rest(number));
  stands_still_ = true;
  VMM_TRY(back_end_.stop());
  // The last answers of asynchronous queues: the interrupt for them is part of the machine's state.
  if (options_.answers == Answers::before_return) attend();
  return {};
}

void VhostUserDevice::go_on() {
  if (!std::exchange(stands_still_, false)) return;
  if (auto outcome = run_as_they_are(setup_); !outcome) fail(std::move(outcome.error()));
}

Result<void> VhostUserDevice::resume(const DriverSetup& setup, ByteReader& /*in*/) { return run_as_they_are(setup); }

Result<void> VhostUserDevice::run_as_they_are(const DriverSetup& setup) {
  VMM_TRY(run(setup, false));
  for (const auto& queue : queues_)
    if (queue->ring) signal_event(queue->kick);
  return {};
}

void VhostUserDevice::forget_rings() {
  stopping_ = true;  // ends waits: whoever waits holds a mutex
  for (const auto& queue : queues_) {
    const std::lock_guard lock{queue->mutex};
    queue->ring.reset();
  }
}

void VhostUserDevice::stop() {
  auto outcome = back_end_.stop();
  stands_still_ = false;
  forget_rings();
  // The daemon may still write into the guest's RAM at any time.
  if (!outcome) fail(std::move(outcome.error()));
}

void VhostUserDevice::notify(unsigned number) {
  if (number >= queues_.size()) return;
  Queue& queue = *queues_[number];
  if (options_.answers == Answers::by_kvm || queue.asynchronous) return signal_event(queue.kick);
  Found found;
  {
    const std::lock_guard lock{queue.mutex};
    if (!queue.ring) return;
    const std::uint16_t target = queue.ring->available();
    signal_event(queue.kick);
    if (auto error = wait_for_answers(queue, target))
      found.error = std::move(error);
    else
      found = look(number, queue);
  }
  tell(number, found);
}

/// Waits until the device has returned all buffers up to `target`. An error if the daemon has ended.
std::optional<Error> VhostUserDevice::wait_for_answers(const Queue& queue, std::uint16_t target) const {
  const auto ahead = [&queue](std::uint16_t index) { return static_cast<std::uint16_t>(index - queue.seen); };
  // An index beyond the ring's size is a driver's error: there is no answer to wait for.
  if (ahead(target) > queue.ring->size()) return {};
  for (long look_after = first_look_ns; ahead(queue.ring->used()) < ahead(target);) {
    if (interrupted_ || stopping_ || failed_) return {};
    std::array<pollfd, 3> waiting{pollfd{.fd = queue.call.get(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = back_end_.channel().socket(), .events = POLLRDHUP, .revents = 0},
                                  pollfd{.fd = interrupt_.get(), .events = POLLIN, .revents = 0}};
    const timespec limit{.tv_sec = 0, .tv_nsec = look_after};
    const int ready = ::ppoll(waiting.data(), waiting.size(), &limit, nullptr);
    if (ready > 0 && waiting[0].revents != 0) drain_event(queue.call.get());
    // Its last answers may have arrived.
    if (ready > 0 && hung_up(waiting[1]) && ahead(queue.ring->used()) < ahead(target))
      return back_end_.channel().hung_up();
    look_after = std::min(look_after * 2, last_look_ns);
  }
  return {};
}

VhostUserDevice::Found VhostUserDevice::look(unsigned number, Queue& queue) {
  const SplitRing& ring = *queue.ring;
  const std::uint16_t used = ring.used();
  const auto fresh = static_cast<std::uint16_t>(used - queue.seen);
  if (fresh == 0) return {};
  // A guest that polls takes answers and makes new buffers available without an exit: more than the ring holds may have
  // been returned since the last look, and where the device wrote for them is no longer known.
  if (queue.asynchronous && fresh > ring.size() && static_cast<std::uint16_t>(ring.available() - used) <= ring.size()) {
    queue.seen = used;
    const auto all = memory_->ranges();
    return {.written = {all.begin(), all.end()}, .error = {}};
  }
  if (fresh > ring.size() || fresh > static_cast<std::uint16_t>(ring.available() - queue.seen))
    return {.error = back_end_.channel().failed_peer(
                fmt::format("the used index of queue {} went from {} to {}, with {} buffers available", number,
                            queue.seen, used, static_cast<std::uint16_t>(ring.available() - queue.seen)),
                "either the daemon or the guest's driver is broken")};
  auto written = ring.written(queue.seen, fresh);
  if (!written)
    return {.error = back_end_.channel().failed_peer(
                fmt::format("the used ring of queue {} names a buffer beyond its {}", number, ring.size()),
                "either the daemon or the guest's driver is broken")};
  queue.seen = used;
  return {.written = std::move(*written)};
}

void VhostUserDevice::tell(unsigned queue, const Found& found) {
  if (found.error) return fail(*found.error);
  DeviceEvents* const events = events_;
  if (events == nullptr || found.written.empty()) return;
  for (const MemoryRange& range : found.written) events->written(range.first, range.bytes);
  events->used(queue);
}

Result<void> VhostUserDevice::begin(DeviceEvents& events) {
  VMM_ASSERT(events_ == nullptr);
  events_ = &events;
  // Signals of the process are not for this thread.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<void> outcome;
  try {
    watcher_ = std::thread{[this] { watch(); }};
  } catch (const std::system_error& error) {
    outcome = host_error("cannot start a device's thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return outcome;
}

void VhostUserDevice::watch() {
  LastLines* const messages = back_end_.channel().messages();
  std::vector<pollfd> waiting{
      {.fd = interrupt_.get(), .events = POLLIN, .revents = 0},
      {.fd = back_end_.channel().socket(), .events = POLLRDHUP, .revents = 0},
      {.fd = messages != nullptr ? messages->descriptor() : -1, .events = POLLIN, .revents = 0}};
  if (options_.answers == Answers::before_return)
    for (const auto& queue : queues_)
      if (queue->asynchronous) waiting.push_back({.fd = queue->call.get(), .events = POLLIN, .revents = 0});
  while (!interrupted_) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
    // Its last messages tell why it ended. poll() ignores a descriptor of -1.
    if (messages != nullptr && waiting[2].revents != 0 && !messages->read()) waiting[2].fd = -1;
    if (hung_up(waiting[1])) {
      fail(back_end_.channel().hung_up());
      waiting[1].fd = -1;
    }
    const auto calls = std::span{waiting}.subspan(3);
    if (std::ranges::none_of(calls, [](const pollfd& call) { return call.revents != 0; })) continue;
    for (const pollfd& call : calls) drain_event(call.fd);
    events_.load()->attention();
  }
}

void VhostUserDevice::attend() {
  for (unsigned number = 0; number < queues_.size(); ++number) {
    Queue& queue = *queues_[number];
    if (!queue.asynchronous) continue;
    Found found;
    {
      const std::lock_guard lock{queue.mutex};
      if (queue.ring) found = look(number, queue);
    }
    tell(number, found);
  }
}

}  // namespace vmm::virtio
