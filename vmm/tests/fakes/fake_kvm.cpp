#include "fakes/fake_kvm.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>

namespace vmm::test {
namespace {

constexpr std::size_t run_bytes = 3 * 4096;
FakeKvm* current = nullptr;

template <class T>
T& at(std::uintptr_t argument) {
  return *reinterpret_cast<T*>(argument);
}

bool same_file(int a, int b) {
  struct stat x {}, y {};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

}  // namespace

FakeKvm::FakeKvm() : device_{::memfd_create("fake-kvm", MFD_CLOEXEC)} { current = this; }
FakeKvm::~FakeKvm() {
  current = nullptr;
  ::close(device_);
}

std::string FakeKvm::path() const { return "/proc/self/fd/" + std::to_string(device_); }

bool FakeKvm::is_ours(int fd) const { return std::ranges::find(files_, fd) != files_.end() || same_file(fd, device_); }

int FakeKvm::new_file(std::size_t bytes) {
  const int fd = ::memfd_create("fake-kvm-object", MFD_CLOEXEC);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return -1;
  files_.push_back(fd);
  return fd;
}

std::vector<FakeKvm::Call> FakeKvm::calls() const {
  const std::scoped_lock lock{mutex_};
  return calls_;
}
std::size_t FakeKvm::count(unsigned long request) const {
  const auto all = calls();
  return static_cast<std::size_t>(std::ranges::count(all, request, &Call::request));
}
std::optional<std::size_t> FakeKvm::first(unsigned long request) const {
  const auto all = calls();
  const auto found = std::ranges::find(all, request, &Call::request);
  if (found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
}
CpuidTable FakeKvm::cpuid() const {
  const std::scoped_lock lock{mutex_};
  return cpuid_;
}
std::optional<std::uint64_t> FakeKvm::msr(std::uint32_t index) const {
  const std::scoped_lock lock{mutex_};
  const auto found = msrs_.find(index);
  return found == msrs_.end() ? std::nullopt : std::optional{found->second};
}

std::optional<int> FakeKvm::ioctl(int fd, unsigned long request, std::uintptr_t argument) {
  const std::scoped_lock lock{mutex_};
  if (!is_ours(fd)) return std::nullopt;
  if (const auto fails = failing.find(request); fails != failing.end()) {
    errno = fails->second;
    return -1;
  }
  return answer(fd, request, argument);
}

int FakeKvm::answer(int fd, unsigned long request, std::uintptr_t argument) {
  Call& call = calls_.emplace_back(Call{.request = request, .value = argument});
  switch (request) {
    case KVM_GET_API_VERSION: return KVM_API_VERSION;
    case KVM_CHECK_EXTENSION: {
      const auto found = capabilities.find(static_cast<std::uint32_t>(argument));
      return found == capabilities.end() ? 1 : found->second;
    }
    case KVM_GET_VCPU_MMAP_SIZE: return run_bytes;
    case KVM_CREATE_VM:
    case KVM_CREATE_VCPU: return new_file(run_bytes);
    case KVM_ENABLE_CAP: call.value = at<kvm_enable_cap>(argument).cap; return 0;
    case KVM_GET_TSC_KHZ: return 2'000'000;
    case KVM_GET_SUPPORTED_CPUID: {
      auto& list = at<kvm_cpuid2>(argument);
      list.nent = static_cast<std::uint32_t>(supported.entries().size());
      std::ranges::copy(supported.entries(), list.entries);
      return 0;
    }
    case KVM_SET_CPUID2: {
      const auto& list = at<kvm_cpuid2>(argument);
      cpuid_ = CpuidTable{std::vector<kvm_cpuid_entry2>(list.entries, list.entries + list.nent)};
      return 0;
    }
    case KVM_GET_MSR_INDEX_LIST: {
      auto* const list = reinterpret_cast<std::uint32_t*>(argument);
      list[0] = static_cast<std::uint32_t>(saved.size());
      std::ranges::copy(saved, list + 1);
      return 0;
    }
    case KVM_GET_MSRS: {
      auto& list = at<kvm_msrs>(argument);
      const auto& from = same_file(fd, device_) ? features : msrs_;
      for (std::uint32_t i = 0; i < list.nmsrs; ++i) {
        const auto found = from.find(list.entries[i].index);
        if (found == from.end() && &from == &features) return static_cast<int>(i);
        list.entries[i].data = found == from.end() ? 0 : found->second;
      }
      return static_cast<int>(list.nmsrs);
    }
    case KVM_SET_MSRS: {
      const auto& list = at<kvm_msrs>(argument);
      for (std::uint32_t i = 0; i < list.nmsrs; ++i) msrs_[list.entries[i].index] = list.entries[i].data;
      return static_cast<int>(list.nmsrs);
    }
    case KVM_SET_PMU_EVENT_FILTER: {
      const auto& filter = at<kvm_pmu_event_filter>(argument);
      call.words.resize((sizeof filter + filter.nevents * sizeof filter.events[0]) / sizeof(std::uint64_t));
      std::memcpy(call.words.data(), &filter, call.words.size() * sizeof(std::uint64_t));
      return 0;
    }
    case KVM_RUN: {
      auto* const page = static_cast<kvm_run*>(::mmap(nullptr, run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
      page->exit_reason = KVM_EXIT_SHUTDOWN;
      ::munmap(page, run_bytes);
      return 0;
    }
    case KVM_GET_STATS_FD: errno = ENOTTY; return -1;
    default: return 0;
  }
}

}  // namespace vmm::test

// The library makes every ioctl by syscall(), which here comes before the C library's.
extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  const long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long), d = va_arg(list, long), e = va_arg(list, long);
  va_end(list);
  if (number == SYS_ioctl && vmm::test::current != nullptr)
    if (const auto answered = vmm::test::current->ioctl(static_cast<int>(a), static_cast<unsigned long>(b), static_cast<std::uintptr_t>(c)))
      return *answered;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  long result = number;
  asm volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}
