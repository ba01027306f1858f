#include "jail/syscall_filter.hpp"

#include <linux/prctl.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "jail/allowed_calls.hpp"

namespace vmm {
namespace {

#ifdef VPMU_WITHOUT_SYSCALL_FILTERS
constexpr bool filters_work = false;
#else
constexpr bool filters_work = true;
#endif

constexpr std::size_t max_calls = 512;
using CallName = std::array<char, 32>;

/// All that the signal handler needs, collected in advance: the handler itself cannot look it up.
struct Told {
  std::array<CallName, max_calls> names{};
  termios terminal{};
  bool restores_terminal{};
};
Told told;

/// Text that is put together without allocating memory, in a signal handler.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const std::size_t part = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), part);
    size_ += part;
    return *this;
  }
  Line& operator<<(unsigned number) {
    std::array<char, 10> digits{};
    std::size_t at = digits.size();
    do digits[--at] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    return *this << std::string_view{digits.data() + at, digits.size() - at};
  }
  void write() const { (void)!::write(STDERR_FILENO, text_.data(), size_); }

 private:
  std::array<char, 256> text_{};
  std::size_t size_{};
};

void on_forbidden_call(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto number = static_cast<unsigned>(info->si_syscall);
  std::array<char, 16> thread{};
  ::prctl(PR_GET_NAME, thread.data());
  if (told.restores_terminal) ::tcsetattr(STDIN_FILENO, TCSANOW, &told.terminal);
  Line line;
  line << "vpmu: the jail ends the machine: its thread " << thread.data() << " made the system call ";
  line << (number < max_calls && told.names[number][0] != '\0' ? told.names[number].data() : "number") << " ("
       << number;
  line << "), which the jail forbids; please report this; --no-jail runs without the jail\n";
  line.write();
  // Nothing more of this process can be relied on: neither its statistics nor its files.
  ::_exit(EXIT_FAILURE);
}

Result<void> checked(int result, std::string_view what) {
  if (result == 0) return {};
  return host_error(fmt::format("the jail's system call filter: {}", what), -result,
                    "see `vpmu doctor`; --no-jail runs without it");
}

}  // namespace

struct SyscallFilter::Filter {
  explicit Filter(scmp_filter_ctx from) : context{from} {}
  ~Filter() { seccomp_release(context); }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;
  Filter(Filter&&) = delete;
  Filter& operator=(Filter&&) = delete;

  scmp_filter_ctx context;
  std::mutex mutex;  ///< libseccomp writes to a context that it loads.
};

SyscallFilter::SyscallFilter(std::unique_ptr<Filter> filter) : filter_{std::move(filter)} {}
SyscallFilter::SyscallFilter(SyscallFilter&&) noexcept = default;
SyscallFilter& SyscallFilter::operator=(SyscallFilter&&) noexcept = default;
SyscallFilter::~SyscallFilter() = default;

Result<SyscallFilter> SyscallFilter::create(Confined whom, VcpuNeeds needs) {
  auto filter = std::make_unique<Filter>(seccomp_init(SCMP_ACT_TRAP));
  auto* const context = filter->context;
  if (context == nullptr) return host_error("libseccomp cannot make a filter", ENOMEM);
  VMM_TRY(checked(seccomp_attr_set(context, SCMP_FLTATR_CTL_TSYNC, whom == Confined::process ? 1 : 0), "TSYNC"));
  for (const AllowedCall& call : allowed_calls(whom, needs))
    VMM_TRY(checked(seccomp_rule_add_array(context, SCMP_ACT_ALLOW, call.number,
                                           static_cast<unsigned>(call.arguments.size()), call.arguments.data()),
                    std::to_string(call.number)));
  // The flags of clone3() are in memory, where a filter cannot look. With ENOSYS the C library uses clone().
  VMM_TRY(checked(seccomp_rule_add(context, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0), "clone3"));
  // Between its start and its own confinement, a vCPU's thread tries to open files that it can do without. Later no
  // thread opens files, so the filters of single threads end the process for it.
  if (whom == Confined::process)
    VMM_TRY(checked(seccomp_rule_add(context, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat), 0), "openat"));
  // KVM_RUN is an ioctl: by far the most frequent call, so the filter looks for it first.
  VMM_TRY(checked(seccomp_syscall_priority(context, SCMP_SYS(ioctl), 255), "ioctl"));
  return SyscallFilter{std::move(filter)};
}

Result<void> SyscallFilter::load() {
  if (!filters_work) return {};
  const std::scoped_lock lock{filter_->mutex};
  return checked(seccomp_load(filter_->context), "seccomp");
}

Result<void> name_forbidden_calls() {
  for (std::size_t number = 0; number < max_calls; ++number) {
    char* const name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(number));
    if (name == nullptr) continue;
    std::strncpy(told.names[number].data(), name, told.names[number].size() - 1);
    std::free(name);
  }
  told.restores_terminal = ::isatty(STDIN_FILENO) != 0 && ::tcgetattr(STDIN_FILENO, &told.terminal) == 0;
  struct sigaction action{};
  action.sa_sigaction = on_forbidden_call;
  action.sa_flags = SA_SIGINFO;
  ::sigfillset(&action.sa_mask);
  if (::sigaction(SIGSYS, &action, nullptr) != 0) return host_error("sigaction of SIGSYS", errno);
  return {};
}

}  // namespace vmm
