#include "exec/guest/mounts.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "exec/guest/system.hpp"

namespace vmm::tool::guest {
namespace {

constexpr mode_t open_directory = 0755;
constexpr unsigned max_partitions = 128;

struct FileSystem {
  const char* type;
  std::string source;
  std::string target;
  unsigned long flags;
  const char* options;
};

/// Makes a directory and those above it; a failure shows when something is mounted there.
void make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    ::mkdir(path.substr(0, slash).c_str(), open_directory);
    if (slash == std::string::npos) return;
  }
}

/// The option that a kernel without this file system lacks, or what it is called.
std::string option_of(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, const char*>, 6> options{{{"virtiofs", "CONFIG_VIRTIO_FS"},
                                                                             {"overlay", "CONFIG_OVERLAY_FS"},
                                                                             {"ext4", "CONFIG_EXT4_FS"},
                                                                             {"tmpfs", "CONFIG_TMPFS"},
                                                                             {"devtmpfs", "CONFIG_DEVTMPFS"},
                                                                             {"devpts", "CONFIG_UNIX98_PTYS"}}};
  for (const auto& [of, option] : options)
    if (of == type) return option;
  return std::string{type};
}

/// mount(2), which first makes its mount point if that is missing. Returns errno, or 0.
int mount_errno(const FileSystem& system) {
  for (bool made = false;; made = true) {
    if (::mount(system.source.c_str(), system.target.c_str(), system.type, system.flags, system.options) == 0) return 0;
    if (errno != ENOENT || made) return errno;
    make_directories(system.target);
  }
}

Result<void> mount(const FileSystem& system) {
  const int failure = mount_errno(system);
  if (failure == 0) return {};
  if (failure == ENODEV) return host_error("the guest's kernel has no " + option_of(system.type), 0, lacking_advice);
  return host_error("mounting " + std::string{system.type} + " '" + system.source + "' at " + system.target, failure);
}

Result<void> move_mount(const char* from, const char* to) {
  ::mkdir(to, open_directory);
  if (::mount(from, to, nullptr, MS_MOVE, nullptr) != 0)
    return host_error("moving the mount " + std::string{from} + " to " + to, errno);
  return {};
}

constexpr unsigned long no_programs = MS_NOSUID | MS_NODEV | MS_NOEXEC;

/// What programs expect below /dev, /run and /sys, as a distribution's own init mounts it.
Result<void> mount_expected() {
  const auto needed = std::to_array<FileSystem>({
      {"devpts", "devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
      {"tmpfs", "tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777"},
      {"tmpfs", "tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=755"},
  });
  for (const FileSystem& system : needed) VMM_TRY(mount(system));
  // A kernel may lack any of these, and their mount points exist only if the kernel provides them. The tracepoints are
  // open to any user, because the whole machine belongs to the command's user.
  const auto optional = std::to_array<FileSystem>({
      {"tracefs", "tracefs", "/sys/kernel/tracing", no_programs, "mode=755"},
      {"debugfs", "debugfs", "/sys/kernel/debug", no_programs, "mode=755"},
      {"securityfs", "securityfs", "/sys/kernel/security", no_programs, nullptr},
      {"bpf", "bpf", "/sys/fs/bpf", no_programs, "mode=700"},
      {"cgroup2", "cgroup2", "/sys/fs/cgroup", no_programs, nullptr},
  });
  for (const FileSystem& system : optional)
    ::mount(system.source.c_str(), system.target.c_str(), system.type, system.flags, system.options);
  // devtmpfs has only the devices.
  for (const auto& [target, link] :
       {std::pair{"/proc/self/fd", "/dev/fd"}, std::pair{"/proc/self/fd/0", "/dev/stdin"},
        std::pair{"/proc/self/fd/1", "/dev/stdout"}, std::pair{"/proc/self/fd/2", "/dev/stderr"}})
    if (::symlink(target, link) != 0 && errno != EEXIST) return host_error("making " + std::string{link}, errno);
  return {};
}

Result<void> load_module(const std::string& name) {
  VMM_ASSIGN(const Fd file, open_file("/" + std::string{exec_module_directory} + "/" + name, O_RDONLY));
  // EEXIST is no failure: another module may have requested it before.
  if (::syscall(SYS_finit_module, file.get(), "", 0) != 0 && errno != EEXIST)
    return host_error("loading the module " + name, errno, errno == ENOEXEC ? "it is of another kernel" : "");
  return {};
}

/// Removes CAP_FOWNER from this thread for the object's lifetime.
class WithoutFileOwnership {
 public:
  WithoutFileOwnership() {
    ::syscall(SYS_capget, &header_, before_.data());
    auto less = before_;
    less[0].effective &= ~(1U << CAP_FOWNER);
    ::syscall(SYS_capset, &header_, less.data());
  }
  ~WithoutFileOwnership() { ::syscall(SYS_capset, &header_, before_.data()); }
  WithoutFileOwnership(const WithoutFileOwnership&) = delete;
  WithoutFileOwnership& operator=(const WithoutFileOwnership&) = delete;

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> before_{};
};

/// As mount_errno(), of a file system that is mounted read-only.
int mount_device_errno(const std::string& device) {
  FileSystem system{"ext4", "/dev/" + device, "/lower", MS_RDONLY | MS_SILENT, nullptr};
  const int failure = mount_errno(system);
  if (failure != EROFS) return failure;
  // The journal has to be replayed first, which a read-only disk does not allow: ignore it.
  system.options = "noload";
  return mount_errno(system);
}

Result<void> mount_root_disk(const ExecRootDisk& disk) {
  const std::string wanted = disk.device + (disk.partition == 0 ? "" : std::to_string(disk.partition));
  std::string device = wanted;
  int failure = mount_device_errno(device);
  // If the disk itself is no file system, it may have partitions.
  for (unsigned number = 1; failure == EINVAL && disk.partition == 0 && number <= max_partitions; ++number) {
    const std::string partition = disk.device + std::to_string(number);
    if (::access(("/dev/" + partition).c_str(), F_OK) != 0) continue;
    device = partition;
    failure = mount_device_errno(device);
  }
  if (failure == 0) return {};
  if (failure == EINVAL && disk.partition == 0)
    return host_error("there is no ext4 on the root's disk, nor on a partition of it", 0,
                      "give the image of one with --root");
  if (failure == ENODEV) return host_error("the guest's kernel has no ext4, which the root is", 0);
  return host_error("mounting the root, /dev/" + device, failure, "name an ext4 by ,partition=N");
}

Result<void> mount_overlay(FileServer server) {
  const FileSystem overlay{"overlay", "overlay", "/root", 0,
                           "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work"};
  if (server == FileServer::root) return mount(overlay);
  // The overlay acts with the rights of the process that mounts it. With CAP_FOWNER it opens files with O_NOATIME,
  // which on the host an ordinary user may do only with files of his own.
  const WithoutFileOwnership rights;
  return mount(overlay);
}

}  // namespace

Result<void> mount_first() {
  const auto systems = std::to_array<FileSystem>({
      {"proc", "proc", "/proc", no_programs, nullptr},
      {"sysfs", "sysfs", "/sys", no_programs, nullptr},
      {"devtmpfs", "devtmpfs", "/dev", MS_NOSUID, "mode=755"},
  });
  for (const FileSystem& system : systems) VMM_TRY(mount(system));
  return {};
}

Result<void> load_first_modules() {
  VMM_ASSIGN(const std::string list, read_file("/" + std::string{exec_module_list}));
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = list.find('\n', begin);
    VMM_TRY(load_module(list.substr(begin, end - begin)));
    begin = end == std::string::npos ? list.size() : end + 1;
  }
  return {};
}

Result<void> load_modules(const ExecRequest& request) {
  for (const std::string& name : request.modules) VMM_TRY(load_module(name));
  return {};
}

Result<void> mount_root(const ExecRequest& request) {
  VMM_TRY(request.root_disk ? mount_root_disk(*request.root_disk)
                            : mount({"virtiofs", request.root_tag, "/lower", MS_RDONLY, nullptr}));
  VMM_TRY(mount({"tmpfs", "tmpfs", "/upper", 0, "mode=755"}));
  for (const char* const directory : {"/upper/data", "/upper/work"})
    if (::mkdir(directory, open_directory) != 0) return host_error("making " + std::string{directory}, errno);
  VMM_TRY(mount_overlay(request.file_server));
  VMM_TRY(move_mount("/proc", "/root/proc"));
  VMM_TRY(move_mount("/sys", "/root/sys"));
  VMM_TRY(move_mount("/dev", "/root/dev"));
  // pivot_root() cannot leave the initramfs, so the new root is mounted over it.
  if (::chdir("/root") != 0 || ::mount(".", "/", nullptr, MS_MOVE, nullptr) != 0 || ::chroot(".") != 0 ||
      ::chdir("/") != 0)
    return host_error("making the overlay the root", errno);
  VMM_TRY(mount_expected());
  for (const ExecMount& wanted : request.mounts) {
    const unsigned long flags = wanted.access == ExecAccess::read_write ? 0 : MS_RDONLY;
    VMM_TRY(mount({"virtiofs", wanted.tag, wanted.path, flags, nullptr}));
  }
  return {};
}

}  // namespace vmm::tool::guest
