#include "fakes/fake_kvm.hpp"

#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "fakes/raw_syscall.hpp"

namespace vmm::test {
namespace {

constexpr std::size_t run_size = 0x3000;

int memory_file(const char* name) {
  const int fd = ::memfd_create(name, 0);
  if (::ftruncate(fd, run_size) != 0) ::abort();
  return fd;
}

ino_t inode(int fd) {
  struct stat is{};
  return ::fstat(fd, &is) == 0 ? is.st_ino : 0;
}

template <class T>
T& at(std::uintptr_t argument) {
  return *reinterpret_cast<T*>(argument);
}

void put_page(int fd, const kvm_run& page) {
  if (::pwrite(fd, &page, sizeof page, 0) != sizeof page) ::abort();
}

/// Serves the list up to the first MSR that does not exist; returns how many were served.
long serve(kvm_msrs& list, std::map<std::uint32_t, std::uint64_t>& msrs, unsigned long request) {
  std::uint32_t done = 0;
  for (; done < list.nmsrs; ++done) {
    const auto msr = msrs.find(list.entries[done].index);
    if (msr == msrs.end()) break;
    if (request == KVM_GET_MSRS)
      list.entries[done].data = msr->second;
    else
      msr->second = list.entries[done].data;
  }
  return done;
}

long fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

FakeKvm* FakeKvm::current = nullptr;

FakeKvm::FakeKvm() : system_{memory_file("fake-kvm")} { current = this; }

// Closes also the files that a test has left open.
FakeKvm::~FakeKvm() {
  current = nullptr;
  std::vector<int> files;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("memfd:fake-") != std::string::npos)
      files.push_back(std::stoi(entry.path().filename()));
  }
  for (const int fd : files) ::close(fd);
}

FakeKvm::Vcpu& FakeKvm::vcpu(int fd) { return vcpus_.at(inode(fd)); }

kvm_run FakeKvm::run_page(int fd) {
  kvm_run page{};
  if (::pread(fd, &page, sizeof page, 0) != sizeof page) ::abort();
  return page;
}

void FakeKvm::ask_to_come_out(int fd) {
  kvm_run page = run_page(fd);
  page.immediate_exit = 1;
  put_page(fd, page);
}

void FakeKvm::let_go_on(int fd) {
  kvm_run page = run_page(fd);
  page.immediate_exit = 0;
  put_page(fd, page);
}

std::function<void(kvm_run&)> FakeKvm::reads(std::uint32_t msr) {
  return [=](kvm_run& run) {
    run.exit_reason = KVM_EXIT_X86_RDMSR;
    run.msr = {.error = 0, .pad = {}, .reason = KVM_MSR_EXIT_REASON_FILTER, .index = msr, .data = 0};
  };
}

std::function<void(kvm_run&)> FakeKvm::writes(std::uint32_t msr, std::uint64_t value) {
  return [=](kvm_run& run) {
    run.exit_reason = KVM_EXIT_X86_WRMSR;
    run.msr = {.error = 0, .pad = {}, .reason = KVM_MSR_EXIT_REASON_FILTER, .index = msr, .data = value};
  };
}

bool FakeKvm::came_before(unsigned long request, unsigned long other) const {
  const auto first = std::ranges::find(requests, request);
  return first != requests.end() && first < std::ranges::find(requests, other);
}

long FakeKvm::count(unsigned long request) const { return std::ranges::count(requests, request); }

std::vector<std::string> FakeKvm::alive() {
  std::vector<std::string> found;
  const auto is_ours = [](const std::string& text) {
    return text.find("fake-vm") != std::string::npos || text.find("fake-vcpu") != std::string::npos;
  };
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code gone;
    if (const auto to = std::filesystem::read_symlink(entry, gone).string(); is_ours(to)) found.push_back(to);
  }
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);)
    if (is_ours(line)) found.push_back(line);
  return found;
}

int FakeKvm::make_vcpu() {
  const int fd = vcpus_can_be_mapped ? memory_file("fake-vcpu") : ::eventfd(0, 0);
  vcpus_[inode(fd)] = {.msrs = vcpu_msrs};
  newest_ = inode(fd);
  if (first_ == 0) first_ = newest_;
  return fd;
}

long FakeKvm::ioctl(int fd, unsigned long request, std::uintptr_t argument) {
  std::unique_lock lock{mutex_};
  requests.push_back(request);
  if (const auto hook = meanwhile.find(request); hook != meanwhile.end()) hook->second();
  if (const int error = looks ? looks(fd, request, argument) : 0; error != 0) return fail(error);
  if (const auto error = errors.find(request); error != errors.end()) return fail(error->second);
  switch (request) {
    case KVM_GET_VCPU_MMAP_SIZE: return run_size;
    case KVM_CREATE_VM: return memory_file("fake-vm");
    case KVM_CREATE_VCPU: return make_vcpu();
    case KVM_GET_API_VERSION: return KVM_API_VERSION;
    case KVM_CHECK_EXTENSION: {
      const auto found = capabilities.find(static_cast<std::uint32_t>(argument));
      return found == capabilities.end() ? other_capabilities : found->second;
    }
    case KVM_ENABLE_CAP: {
      const auto& cap = at<kvm_enable_cap>(argument);
      enabled.push_back(cap.cap);
      if (cap.cap == KVM_CAP_X86_USER_SPACE_MSR) msr_exits = cap.args[0];
      return 0;
    }
    case KVM_SET_PMU_EVENT_FILTER: {
      const auto& filter = at<kvm_pmu_event_filter>(argument);
      event_filter.resize((sizeof filter + filter.nevents * sizeof filter.events[0]) / sizeof(std::uint64_t));
      std::memcpy(event_filter.data(), &filter, event_filter.size() * sizeof(std::uint64_t));
      return 0;
    }
    case KVM_GET_SUPPORTED_CPUID: {
      auto& list = at<kvm_cpuid2>(argument);
      list.nent = static_cast<std::uint32_t>(supported.entries().size());
      std::ranges::copy(supported.entries(), list.entries);
      return 0;
    }
    case KVM_GET_MSR_INDEX_LIST: {
      auto& list = at<kvm_msr_list>(argument);
      const auto room = list.nmsrs;
      list.nmsrs = static_cast<std::uint32_t>(msr_list.size());
      if (room < list.nmsrs) return fail(E2BIG);
      std::ranges::copy(msr_list, list.indices);
      return 0;
    }
    default: break;
  }
  const auto found = vcpus_.find(inode(fd));
  if (request == KVM_RUN) lock.unlock();  // others go on meanwhile
  if (found != vcpus_.end()) return on_vcpu(found->second, fd, request, argument);
  return request == KVM_GET_MSRS ? serve(at<kvm_msrs>(argument), feature_msrs, request) : 0;
}

std::uint64_t FakeKvm::tsc_of(const Vcpu& vcpu) {
  __extension__ using wide = unsigned __int128;
  const bool scales = vcpu.tsc_khz != host_tsc_khz;
  const wide ratio = scales ? (wide{vcpu.tsc_khz} << vcpu.fraction_bits) / host_tsc_khz : wide{1};
  const auto ticks = static_cast<std::uint64_t>(wide{__rdtsc()} * ratio >> (scales ? vcpu.fraction_bits : 0));
  return ticks + vcpu.tsc_offset + (vcpu.jumps ? 1ULL << 40 : 0);
}

long FakeKvm::on_tsc_offset(Vcpu& vcpu, unsigned long request, const kvm_device_attr& attribute) {
  auto& given = at<std::uint64_t>(attribute.addr);
  (request == KVM_GET_DEVICE_ATTR ? given : vcpu.tsc_offset) = request == KVM_GET_DEVICE_ATTR ? vcpu.tsc_offset : given;
  return 0;
}

long FakeKvm::on_vcpu(Vcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument) const {
  switch (request) {
    case KVM_GET_TSC_KHZ: return vcpu.tsc_khz;
    case KVM_SET_TSC_KHZ: vcpu.tsc_khz = static_cast<std::uint32_t>(argument); return 0;
    case KVM_GET_DEVICE_ATTR:
    case KVM_SET_DEVICE_ATTR: return on_tsc_offset(vcpu, request, at<kvm_device_attr>(argument));
    case KVM_GET_STATS_FD: return fail(ENOTTY);
    case KVM_GET_REGS: at<kvm_regs>(argument) = vcpu.regs; return 0;
    case KVM_SET_REGS: vcpu.regs = at<kvm_regs>(argument); return 0;
    case KVM_GET_SREGS: at<kvm_sregs>(argument) = vcpu.sregs; return 0;
    case KVM_SET_SREGS: vcpu.sregs = at<kvm_sregs>(argument); return 0;
    case KVM_SET_GUEST_DEBUG: vcpu.debug = at<kvm_guest_debug>(argument); return 0;
    case KVM_SET_CPUID2: {
      const auto& list = at<kvm_cpuid2>(argument);
      vcpu.cpuid.assign(list.entries, list.entries + list.nent);
      return 0;
    }
    case KVM_GET_NESTED_STATE: {
      auto& state = at<kvm_nested_state>(argument);
      const auto room = std::exchange(state.size, sizeof(kvm_nested_state));
      state.flags = 0;
      state.format = KVM_STATE_NESTED_FORMAT_SVM;
      return room < state.size ? fail(E2BIG) : 0;
    }
    case KVM_GET_MSRS: {
      auto msrs = vcpu.msrs;
      if (const auto tsc = msrs.find(0x10); tsc != msrs.end() && tsc->second == 0) tsc->second = tsc_of(vcpu);
      return serve(at<kvm_msrs>(argument), msrs, request);
    }
    case KVM_SET_MSRS: return serve(at<kvm_msrs>(argument), vcpu.msrs, request);
    case KVM_RUN: {
      kvm_run page = run_page(fd);
      if (page.immediate_exit != 0) return fail(EINTR);  // and exit_reason stays
      page.exit_reason = KVM_EXIT_HLT;
      if (vcpu.script.empty() && otherwise) otherwise(vcpu, page);
      if (!vcpu.script.empty()) {
        vcpu.script.front()(page);
        vcpu.script.pop_front();
      }
      page.immediate_exit = run_page(fd).immediate_exit;  // signals may have come
      put_page(fd, page);
      return page.exit_reason == KVM_EXIT_INTR ? fail(EINTR) : 0;
    }
    default: return 0;
  }
}

}  // namespace vmm::test

// Replaces the C library's syscall(), through which the code under test calls the kernel.
extern "C" READS_SIX_ARGUMENTS long syscall(long number, ...) noexcept {
  std::array<long, 6> a{};
  va_list arguments;
  va_start(arguments, number);
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  auto* const kvm = vmm::test::FakeKvm::current;
  const auto request = static_cast<unsigned long>(a[1]);
  if (number == SYS_ioctl && kvm != nullptr && _IOC_TYPE(request) == KVMIO)
    return kvm->ioctl(static_cast<int>(a[0]), request, static_cast<std::uintptr_t>(a[2]));
  return vmm::test::raw_syscall(number, a);
}
