#include "virtio/console.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "support/assert.hpp"

namespace vmm::virtio {
namespace {

constexpr std::uint64_t f_multiport = 1ULL << 1U;
constexpr std::uint16_t queue_entries = 64;
/// Port 0 has the first two queues, the control queues follow, then the other ports. Virtio 1.2 5.3.2.
constexpr unsigned control_input = 2, control_output = 3;
/// The guest's output is on the second queue of a pair.
constexpr unsigned input_queue(unsigned port) { return port == 0 ? 0 : 2 + 2 * port; }
constexpr unsigned output_queue(unsigned port) { return input_queue(port) + 1; }

/// Virtio 1.2 5.3.6.2.
namespace event {
constexpr std::uint16_t device_ready = 0, device_add = 1, port_ready = 3, port_open = 6, port_name = 7;
}
struct [[gnu::packed]] ConsoleHeader {
  std::uint32_t port;
  std::uint16_t event, value;
};
/// A driver's messages consist of a header only.
constexpr std::size_t max_messages = 256;  // waiting for a driver that takes none

/// A port as it is saved; so are messages for the guest, as ConsoleHeader and text.
struct SavedPort {
  std::uint64_t passed_on, received;
  std::uint64_t written;  ///< Bytes of the output under way.
  std::uint16_t head;     ///< Of its chain.
  std::uint16_t has_output, opened, closed_by_us;
};

std::uint16_t number_of(bool flag) { return flag ? 1 : 0; }

bool is_ready(int fd, short what) {
  pollfd wanted{.fd = fd, .events = what, .revents = 0};
  return ::poll(&wanted, 1, 0) > 0;
}

/// Resets an event to 0.
void clear(const Fd& event) {
  std::uint64_t count{};
  static_cast<void>(::read(event.get(), &count, sizeof count) == sizeof count);
}

void add_one(const Fd& event) {
  constexpr std::uint64_t one = 1;
  // Fails only when the counter is full, and then it is not zero.
  static_cast<void>(::write(event.get(), &one, sizeof one) == sizeof one);
}

}  // namespace

Result<std::unique_ptr<Console>> Console::create(const GuestMemory& memory, std::vector<Port> ports, Work work) {
  VMM_ASSERT(!ports.empty() && ports.size() <= max_ports);
  Fd wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}, cancel{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake.valid() || !cancel.valid()) return host_error("eventfd for the console", errno);
  return std::unique_ptr<Console>{new Console{memory, std::move(ports), work, std::move(wake), std::move(cancel)}};
}

Console::Console(const GuestMemory& memory, std::vector<Port> ports, Work work, Fd wake, Fd cancel)
    : memory_{&memory},
      work_{work},
      wake_{std::move(wake)},
      cancel_{std::move(cancel)},
      queue_sizes_(2 * ports.size() + 2, queue_entries),
      queues_(queue_sizes_.size()) {
  for (auto& port : ports) ports_.push_back({.port = std::move(port), .output = {}});
}

Console::~Console() {
  cancel();
  wake();
  if (thread_.joinable()) thread_.join();
}

void Console::cancel() {
  ends_ = true;
  add_one(cancel_);
}
void Console::wake() { add_one(wake_); }

std::uint64_t Console::features() const { return f_version_1 | f_multiport; }

// Virtio 1.2 5.3.4: columns, rows, max_nr_ports, emerg_wr.
void Console::read_configuration(std::uint32_t offset, std::span<std::byte> out) {
  std::array<std::byte, 12> configuration{};
  const auto ports = static_cast<std::uint32_t>(queue_sizes_.size() / 2 - 1);
  std::memcpy(configuration.data() + 4, &ports, sizeof ports);
  for (std::size_t i = 0; i < out.size() && offset + i < configuration.size(); ++i) out[i] = configuration[offset + i];
}

Result<void> Console::begin(DeviceEvents& events) {
  events_ = &events;
  thread_ = std::thread{[this] { watch(); }};
  return {};
}

Result<void> Console::start(const DriverSetup& setup) {
  const std::scoped_lock lock{mutex_};
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    queues_[i].reset();
    if (!setup.rings[i]) continue;
    VMM_ASSIGN(queues_[i], Queue::open(*memory_, *setup.rings[i]));
  }
  return {};
}

Result<void> Console::save(ByteWriter& out) {
  const std::scoped_lock lock{mutex_};
  stands_still_ = true;
  for (const auto& queue : queues_) out.put(queue ? queue->progress() : QueueProgress{});
  for (unsigned port = 0; port < ports_.size(); ++port) {
    const State& state = ports_[port];
    out.put(SavedPort{.passed_on = passed_on(port),
                      .received = state.received,
                      .written = state.written,
                      .head = state.output ? state.output->head : std::uint16_t{0},
                      .has_output = number_of(state.output.has_value()),
                      .opened = number_of(state.opened),
                      .closed_by_us = number_of(state.closed_by_us)});
  }
  out.put(number_of(broken_));
  out.put(std::uint64_t{messages_.size()});
  for (const Message& message : messages_) {
    out.put(ConsoleHeader{.port = message.port, .event = message.event, .value = message.value});
    out.put_run(std::as_bytes(std::span{message.text}));
  }
  return {};
}

void Console::go_on() {
  {
    const std::scoped_lock lock{mutex_};
    stands_still_ = false;
  }
  wake();
}

Result<void> Console::resume(const DriverSetup& setup, ByteReader& in) {
  const std::scoped_lock lock{mutex_};
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    const auto progress = in.get<QueueProgress>();
    queues_[i].reset();
    if (!setup.rings[i]) continue;
    VMM_ASSIGN(queues_[i], Queue::open(*memory_, *setup.rings[i], progress));
  }
  for (unsigned port = 0; port < ports_.size(); ++port) VMM_TRY(resume_port(port, in));
  broken_ = in.get<std::uint16_t>() != 0;
  messages_.clear();
  const auto count = std::min<std::uint64_t>(in.get<std::uint64_t>(), 2 * max_messages);
  for (std::uint64_t n = 0; n < count && in.good(); ++n) {
    const auto header = in.get<ConsoleHeader>();
    const auto text = in.get_run();
    messages_.push_back({.port = header.port,
                         .event = header.event,
                         .value = header.value,
                         .text{reinterpret_cast<const char*>(text.data()), text.size()}});
  }
  return {};
}

Result<void> Console::resume_port(unsigned port, ByteReader& in) {
  const auto saved = in.get<SavedPort>();
  State& state = ports_[port];
  passed_on_[port] = saved.passed_on;
  state.received = saved.received;
  state.written = saved.written;
  state.opened = saved.opened != 0;
  state.closed_by_us = saved.closed_by_us != 0;
  state.output.reset();
  const auto& queue = queues_[output_queue(port)];
  if (saved.has_output != 0 && queue) {
    VMM_ASSIGN(state.output, walk_chain(*memory_, queue->ring(), saved.head));
  }
  return {};
}

void Console::stop() {
  const std::scoped_lock lock{mutex_};
  for (auto& queue : queues_) queue.reset();
  for (auto& state : ports_) {
    state.output.reset();
    state.written = 0;
    state.opened = false;
  }
  messages_.clear();
  broken_ = false;
}

// Without the mutex, which a vCPU holds while it waits for a reader.
std::uint64_t Console::passed_on(unsigned port) const { return passed_on_[port]; }

void Console::notify(unsigned /*queue*/) { serve(); }
void Console::attend() { serve(); }

void Console::serve() {
  const std::scoped_lock lock{mutex_};
  if (!broken_ && !stands_still_) {
    if (const auto served = serve_queues(); !served) {
      broken_ = true;
      events_->broken(served.error());
    }
  }
  wake();  // the descriptors that the thread waits for may have changed
}

/// Under mutex_: serves all queues until nothing moves any more, or the machine is to stop. Other vCPUs may add to the
/// queues meanwhile, so the queues' sizes are no bound.
Result<void> Console::serve_queues() {
  for (bool moved = true; moved && !ends_;) {
    VMM_ASSIGN(moved, take_messages());
    for (unsigned port = 0; port < ports_.size(); ++port) {
      VMM_ASSIGN(const bool out, serve_output(port));
      VMM_ASSIGN(const bool in, serve_input(port));
      moved = moved || out || in;
    }
    VMM_ASSIGN(const bool sent, send_messages());
    moved = moved || sent;
  }
  return {};
}

void Console::done(unsigned queue) {
  if (queues_[queue]->wants_interrupt()) events_->used(queue);
}

/// Whether a write of max_at_a_time would not block. With Work::by_vcpu it first waits for that. False once the
/// machine is to stop: a chain may name gigabytes, and its output be always ready.
bool Console::can_write(const State& state) const {
  if (ends_) return false;
  if (work_ == Work::by_itself) return is_ready(state.port.output.get(), POLLOUT);
  std::array<pollfd, 2> wanted{pollfd{.fd = state.port.output.get(), .events = POLLOUT, .revents = 0},
                               pollfd{.fd = cancel_.get(), .events = POLLIN, .revents = 0}};
  while (::poll(wanted.data(), wanted.size(), -1) < 0 && errno == EINTR) {
  }
  return !ends_ && wanted[0].revents != 0;
}

Result<bool> Console::serve_output(unsigned port) {
  auto& queue = queues_[output_queue(port)];
  State& state = ports_[port];
  if (!queue) return false;
  if (!state.output) {
    VMM_ASSIGN(state.output, queue->next());
    state.written = 0;
    if (!state.output) return false;
  }
  const std::size_t all = total_bytes(state.output->readable);
  while (state.written < all && state.port.output.valid()) {
    if (!can_write(state)) return false;
    std::array<std::byte, max_at_a_time> part;
    const std::size_t bytes = queue->read(*state.output, state.written, part);
    const ssize_t wrote = ::write(state.port.output.get(), part.data(), bytes);
    if (wrote > 0) {
      state.written += static_cast<std::size_t>(wrote);
      if (state.port.heard) state.port.heard(std::span{part}.first(static_cast<std::size_t>(wrote)));
    } else if (errno != EINTR && errno != EAGAIN) {
      state.error = errno;
      state.port.output.reset();
      close_port(port);
    }
  }
  if (state.error != 0 && state.error != EPIPE && state.port.lost && state.written < all)
    state.port.lost(all - state.written, state.error);
  passed_on_[port] += all;
  queue->give_back(*state.output, 0);
  state.output.reset();
  done(output_queue(port));
  return true;
}

Result<bool> Console::serve_input(unsigned port) {
  auto& queue = queues_[input_queue(port)];
  State& state = ports_[port];
  if (!queue || !state.opened || !state.port.input.valid() || !queue->has_more() ||
      !is_ready(state.port.input.get(), POLLIN))
    return false;
  VMM_ASSIGN(const auto chain, queue->next());
  std::array<std::byte, max_at_a_time> part;
  const std::size_t room = std::min(part.size(), total_bytes(chain->writable));
  // It was ready a moment ago, so this does not block. NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection)
  const ssize_t got = room == 0 ? 0 : ::read(state.port.input.get(), part.data(), room);
  const std::size_t bytes = got > 0 ? static_cast<std::size_t>(got) : 0;
  const std::size_t written = write(*queue, *chain, std::span{part}.first(bytes));
  queue->give_back(*chain, static_cast<std::uint32_t>(written));
  done(input_queue(port));
  state.received += written;
  if (got == 0 && room != 0) {
    state.port.input.reset();
    if (state.port.at_end)
      state.port.at_end(state.received);
    else
      close_port(port);
  }
  return true;
}

/// Writes to a chain, and reports the places that were written. A chain may have room for gigabytes.
std::size_t Console::write(const Queue& queue, const Chain& chain, std::span<const std::byte> bytes) {
  const std::size_t written = queue.write(chain, bytes);
  std::size_t left = written;
  for (const Piece& piece : chain.writable) {
    const std::size_t part = std::min<std::size_t>(piece.bytes, left);
    if (part == 0) break;
    events_->written(piece.at, part);
    left -= part;
  }
  return written;
}

void Console::close_port(unsigned port) {
  if (std::exchange(ports_[port].closed_by_us, true)) return;
  messages_.push_back({.port = port, .event = event::port_open, .value = 0});
}

Result<bool> Console::take_messages() {
  auto& queue = queues_[control_output];
  if (!queue || messages_.size() >= max_messages) return false;
  VMM_ASSIGN(const auto chain, queue->next());
  if (!chain) return false;
  ConsoleHeader header{};
  if (queue->read(*chain, 0, std::as_writable_bytes(std::span{&header, 1})) == sizeof header)
    take({.port = header.port, .event = header.event, .value = header.value});
  queue->give_back(*chain, 0);
  done(control_output);
  return true;
}

void Console::take(const Message& message) {
  if (message.event == event::device_ready && message.value == 1) {
    for (std::uint32_t port = 0; port < ports_.size(); ++port)
      messages_.push_back({.port = port, .event = event::device_add, .value = 1});
  }
  // Linux discards what arrives for a port that nobody has opened.
  if (message.event == event::port_open && message.port < ports_.size())
    ports_[message.port].opened = message.value == 1;
  if (message.event != event::port_ready || message.value != 1 || message.port >= ports_.size()) return;
  const State& state = ports_[message.port];
  messages_.push_back({.port = message.port, .event = event::port_name, .value = 1, .text = state.port.name});
  messages_.push_back(
      {.port = message.port, .event = event::port_open, .value = static_cast<std::uint16_t>(!state.closed_by_us)});
}

Result<bool> Console::send_messages() {
  auto& queue = queues_[control_input];
  if (!queue || messages_.empty()) return false;
  VMM_ASSIGN(const auto chain, queue->next());
  if (!chain) return false;
  const Message& message = messages_.front();
  const ConsoleHeader header{.port = message.port, .event = message.event, .value = message.value};
  std::vector<std::byte> bytes(sizeof header + message.text.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, message.text.data(), message.text.size());
  const std::size_t written = write(*queue, *chain, bytes);
  queue->give_back(*chain, static_cast<std::uint32_t>(written));
  messages_.pop_front();
  done(control_input);
  return true;
}

/// The thread: waits for descriptors that are relevant to the guest, and has them served.
void Console::watch() {
  while (!ends_) {
    std::vector<pollfd> wanted{pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    {
      const std::scoped_lock lock{mutex_};
      for (unsigned port = 0; port < ports_.size() && !stands_still_; ++port) {
        const State& state = ports_[port];
        const auto& input = queues_[input_queue(port)];
        if (state.output && state.port.output.valid())
          wanted.push_back({.fd = state.port.output.get(), .events = POLLOUT, .revents = 0});
        if (input && state.opened && state.port.input.valid() && input->has_more())
          wanted.push_back({.fd = state.port.input.get(), .events = POLLIN, .revents = 0});
      }
    }
    if (::poll(wanted.data(), wanted.size(), -1) < 0 && errno != EINTR) return;
    clear(wake_);
    const bool ready = std::any_of(wanted.begin() + 1, wanted.end(), [](const pollfd& fd) { return fd.revents != 0; });
    if (!ready || ends_) continue;
    if (work_ == Work::by_itself) {
      serve();
    } else {
      events_->attention();
      // Nothing to wait for until the queues have been served: serve() wakes this thread.
      pollfd served{.fd = wake_.get(), .events = POLLIN, .revents = 0};
      static_cast<void>(::poll(&served, 1, -1));
    }
  }
}

}  // namespace vmm::virtio
