#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "virtio/device.hpp"
#include "virtio/vhost_user_channel.hpp"

namespace vmm::test {

/// A vhost-user back end: answers as the protocol says, or as a test says, and records the requests that it gets.
class FakeBackEnd {
 public:
  using Request = virtio::vhost_user::Request;
  struct Heard {
    Request request;
    std::uint32_t flags;
    std::vector<std::byte> payload;
    std::size_t descriptors;
    template <class T>
    [[nodiscard]] T as() const {
      T value{};
      EXPECT_EQ(payload.size(), sizeof value) << name_of(request);
      std::memcpy(&value, payload.data(), std::min(payload.size(), sizeof value));
      return value;
    }
  };
  struct RingOfIt {
    Fd kick, call;
  };
  /// A wrong answer that a test asks for: these bytes, after which the connection stays or is closed.
  struct Instead {
    std::string bytes;
    enum class Then { go_on, close } then{Then::go_on};
  };

  std::uint64_t features = virtio::f_version_1 | virtio::vhost_user::f_protocol_features | 0x5;
  std::uint64_t protocol = virtio::vhost_user::protocol_multiple_queues | virtio::vhost_user::protocol_reply_ack |
                           virtio::vhost_user::protocol_configuration;
  std::uint64_t queues = 2;
  std::uint64_t ack = 0;
  std::vector<std::byte> configuration = std::vector<std::byte>(64, std::byte{7});
  std::map<Request, Instead> instead;

  FakeBackEnd() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    front_ = Fd{ends[0]};
    back_ = Fd{ends[1]};
  }
  ~FakeBackEnd() {
    hang_up();
    if (thread_.joinable()) thread_.join();
  }
  FakeBackEnd(const FakeBackEnd&) = delete;
  FakeBackEnd& operator=(const FakeBackEnd&) = delete;

  virtio::VhostUserPeer begin(std::chrono::milliseconds patience = std::chrono::milliseconds{5000}) {
    thread_ = std::thread{[this] { serve(); }};
    return {.name = "the fake for /srv", .socket = std::move(front_), .messages = {}, .patience = patience};
  }
  /// Closes the connection, as a daemon that dies does.
  void hang_up() { ::shutdown(back_.get(), SHUT_RDWR); }

  std::vector<Heard> heard() {
    const std::lock_guard lock{mutex_};
    return heard_;
  }
  std::vector<Heard> heard(Request request) {
    auto all = heard();
    std::erase_if(all, [request](const Heard& one) { return one.request != request; });
    return all;
  }
  /// False if no kick came in time.
  bool wait_for_kick(unsigned queue) { return take(ring(queue).kick); }
  void call(unsigned queue) {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(ring(queue).call.get(), &one, sizeof one), 8);
  }

 private:
  static bool take(const Fd& event) {
    pollfd waiting{.fd = event.get(), .events = POLLIN, .revents = 0};
    std::uint64_t count{};
    return ::poll(&waiting, 1, 5000) == 1 && ::read(event.get(), &count, sizeof count) == 8;
  }
  RingOfIt& ring(unsigned queue) {
    const std::lock_guard lock{mutex_};
    return rings_[queue];
  }
  bool receive(void* to, std::size_t size, std::vector<Fd>& descriptors) {
    for (auto* at = static_cast<char*>(to); size != 0;) {
      iovec part{.iov_base = at, .iov_len = size};
      alignas(cmsghdr) std::array<char, 256> control{};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t got = ::recvmsg(back_.get(), &message, MSG_CMSG_CLOEXEC);
      if (got <= 0) return false;
      for (auto* rights = CMSG_FIRSTHDR(&message); rights != nullptr; rights = CMSG_NXTHDR(&message, rights))
        for (std::size_t byte = 0; byte + CMSG_LEN(0) < rights->cmsg_len; byte += sizeof(int)) {
          int number{};
          std::memcpy(&number, CMSG_DATA(rights) + byte, sizeof number);
          descriptors.emplace_back(number);
        }
      at += got;
      size -= static_cast<std::size_t>(got);
    }
    return true;
  }
  void serve() {
    for (;;) {
      virtio::vhost_user::Header header{};
      std::vector<Fd> descriptors;
      if (!receive(&header, sizeof header, descriptors)) return;
      Heard one{static_cast<Request>(header.request), header.flags, std::vector<std::byte>(header.size), 0};
      if (!receive(one.payload.data(), one.payload.size(), descriptors)) return;
      one.descriptors = descriptors.size();
      {
        const std::lock_guard lock{mutex_};
        keep_event(one, descriptors);
        heard_.push_back(one);
      }
      if (const auto found = instead.find(one.request); found != instead.end()) {
        send(found->second.bytes);
        if (found->second.then == Instead::Then::close) return hang_up();
        continue;
      }
      answer(one);
    }
  }
  void keep_event(const Heard& one, std::vector<Fd>& descriptors) {
    if (descriptors.size() != 1 || one.payload.size() != 8) return;
    auto& events = rings_[static_cast<unsigned>(one.payload[0])];
    if (one.request == Request::set_vring_kick) events.kick = std::move(descriptors[0]);
    if (one.request == Request::set_vring_call) events.call = std::move(descriptors[0]);
  }
  void answer(const Heard& one) {
    if (one.request == Request::get_features) return reply(one, &features, 8);
    if (one.request == Request::get_protocol_features) return reply(one, &protocol, 8);
    if (one.request == Request::get_queue_num) return reply(one, &queues, 8);
    if (one.request == Request::get_vring_base) return reply(one, one.payload.data(), 8);
    if (one.request == Request::get_config) {
      auto payload = one.payload;
      std::memcpy(payload.data() + 12, configuration.data(), std::min(configuration.size(), payload.size() - 12));
      return reply(one, payload.data(), payload.size());
    }
    if ((one.flags & virtio::vhost_user::flag_need_reply) != 0) reply(one, &ack, 8);
  }
  void reply(const Heard& one, const void* payload, std::size_t size) {
    const virtio::vhost_user::Header header{.request = static_cast<std::uint32_t>(one.request),
                                            .flags = 1 | virtio::vhost_user::flag_reply,
                                            .size = static_cast<std::uint32_t>(size)};
    std::string bytes(sizeof header + size, '\0');
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, payload, size);
    send(bytes);
  }
  void send(const std::string& bytes) { (void)!::send(back_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  Fd front_, back_;
  std::mutex mutex_;
  std::vector<Heard> heard_;
  std::map<unsigned, RingOfIt> rings_;
  std::thread thread_;
};

/// Bytes of an answer.
inline std::string answer_bytes(std::uint32_t request, std::uint32_t flags, std::uint32_t size, std::string payload) {
  const std::array<std::uint32_t, 3> header{request, flags, size};
  return std::string{reinterpret_cast<const char*>(header.data()), sizeof header} + std::move(payload);
}

}  // namespace vmm::test
