#include "virtio/vhost_user_channel.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "support/assert.hpp"

namespace vmm::virtio {
namespace {

using namespace vhost_user;

constexpr std::size_t max_descriptors = 2, max_payload = sizeof(ConfigurationHeader) + max_configuration;
constexpr const char* other_version = "use another version of the daemon";
constexpr const char* ended = "it has ended: start the machine again, or run the daemon by hand to see why";

}  // namespace

Error VhostUserChannel::failed_peer(const std::string& what, const std::string& advice, int system_errno) const {
  const std::string said = peer_.messages ? peer_.messages->in_one_line() : std::string{};
  return Error{.kind = ErrorKind::host,
               .what = fmt::format("{}: {}{}", peer_.name, what, said.empty() ? "" : " (it said: " + said + ")"),
               .advice = advice,
               .system_errno = system_errno};
}

Error VhostUserChannel::hung_up() const { return failed_peer("the daemon has closed its connection", ended); }

Failure VhostUserChannel::broken(Request request, const std::string& seen, const std::string& advice, int why) {
  broken_ = failed_peer(fmt::format("{}: {}", name_of(request), seen), advice, why);
  return Failure{*broken_};
}

Failure VhostUserChannel::closed(Request request, int why) {
  return broken(request, "the daemon has closed its connection", ended, why);
}

Result<void> VhostUserChannel::tell(Request request, std::span<const std::byte> payload, Ack ack,
                                    std::span<const int> descriptors) {
  if (broken_) return Failure{*broken_};
  const auto deadline = std::chrono::steady_clock::now() + peer_.patience;
  const bool wanted = ack == Ack::wanted;
  VMM_TRY(send(request, wanted ? flag_need_reply : 0, payload, descriptors, deadline));
  if (!wanted) return {};
  std::uint64_t refused = 0;
  VMM_TRY(receive(request, std::as_writable_bytes(std::span{&refused, 1}), deadline));
  // The answer is complete, so the connection can still be used.
  if (refused != 0)
    return Failure{
        failed_peer(fmt::format("{}: the daemon refused the request with status {:#x}", name_of(request), refused),
                    "see the daemon's own messages")};
  return {};
}

Result<void> VhostUserChannel::ask(Request request, std::span<const std::byte> payload, std::span<std::byte> answer) {
  if (broken_) return Failure{*broken_};
  const auto deadline = std::chrono::steady_clock::now() + peer_.patience;
  VMM_TRY(send(request, 0, payload, {}, deadline));
  return receive(request, answer, deadline);
}

Result<void> VhostUserChannel::wait(Request request, short events, Deadline deadline) {
  for (;;) {
    using std::chrono::milliseconds;
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    // poll() ignores a descriptor of -1.
    std::array<pollfd, 2> waiting{pollfd{.fd = peer_.socket.get(), .events = events, .revents = 0},
                                  pollfd{.fd = interrupt_, .events = POLLIN, .revents = 0}};
    const int ready = ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max(left, milliseconds{0}).count()));
    if (ready > 0 && waiting[0].revents != 0) return {};  // a closed connection shows in the call that follows
    if (ready > 0) return broken(request, "no answer before the machine was to stop", {});
    if (ready < 0 && errno != EINTR) return broken(request, "cannot wait for the daemon", {}, errno);
    if (left.count() <= 0)
      return broken(request, fmt::format("no answer in {} ms", peer_.patience.count()),
                    "see what the daemon waits for, a slow disk perhaps, and start the machine again");
  }
}

Result<void> VhostUserChannel::send(Request request, std::uint32_t flags, std::span<const std::byte> payload,
                                    std::span<const int> descriptors, Deadline deadline) {
  VMM_ASSERT(descriptors.size() <= max_descriptors && payload.size() <= max_payload);
  const Header header{.request = static_cast<std::uint32_t>(request),
                      .flags = version | flags,
                      .size = static_cast<std::uint32_t>(payload.size())};
  std::array<std::byte, sizeof header + max_payload> message{};
  std::memcpy(message.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(message.data() + sizeof header, payload.data(), payload.size());
  const std::size_t size = sizeof header + payload.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(max_descriptors * sizeof(int))> control{};
  for (std::size_t sent = 0; sent < size;) {
    VMM_TRY(wait(request, POLLOUT, deadline));
    iovec part{.iov_base = message.data() + sent, .iov_len = size - sent};
    msghdr envelope{};
    envelope.msg_iov = &part;
    envelope.msg_iovlen = 1;
    if (sent == 0 && !descriptors.empty()) {
      envelope.msg_control = control.data();
      envelope.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
      cmsghdr* const rights = CMSG_FIRSTHDR(&envelope);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
      std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
    }
    const ssize_t done = ::sendmsg(peer_.socket.get(), &envelope, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (done < 0) return closed(request, errno == EPIPE || errno == ECONNRESET ? 0 : errno);
    sent += static_cast<std::size_t>(done);
  }
  return {};
}

Result<void> VhostUserChannel::receive(Request request, std::span<std::byte> answer, Deadline deadline) {
  Header header{};
  VMM_TRY(receive_bytes(request, std::as_writable_bytes(std::span{&header, 1}), deadline));
  if (header.request != static_cast<std::uint32_t>(request))
    return broken(request, fmt::format("the daemon answered request {} instead", header.request), other_version);
  if ((header.flags & version_mask) != version || (header.flags & flag_reply) == 0)
    return broken(request, fmt::format("the daemon's answer has unexpected flags {:#x}", header.flags), other_version);
  if (header.size != answer.size())
    return broken(request, fmt::format("the daemon's answer has {} bytes instead of {}", header.size, answer.size()),
                  other_version);
  return receive_bytes(request, answer, deadline);
}

/// Uses read(), which accepts no descriptors: the kernel closes those that a back end sends along.
Result<void> VhostUserChannel::receive_bytes(Request request, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    VMM_TRY(wait(request, POLLIN, deadline));
    const ssize_t got = ::read(peer_.socket.get(), bytes.data(), bytes.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return closed(request, errno == ECONNRESET ? 0 : errno);
    if (got == 0) return closed(request);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace vmm::virtio
