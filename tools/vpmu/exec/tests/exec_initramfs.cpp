// exec_initramfs KERNEL OUTPUT FIELD...: writes the initramfs of a guest of `vpmu exec`. The fields are those of the
// request's file: argument=/bin/true user=1000. For the tests that boot one.
#include <cstdio>
#include <fstream>
#include <span>

#include "exec/initramfs.hpp"
#include "exec/kernel.hpp"
#include "files/input_file.hpp"

namespace vmm::tool {
namespace {

Result<ExecModules> modules_for(const std::string& kernel) {
  constexpr std::uint64_t max = std::uint64_t{64} << 20;
  VMM_ASSIGN(const auto image, read_whole_file(kernel, {"the kernel", "give a bzImage"}, max));
  VMM_ASSIGN(const std::string version, kernel_version(image));
  VMM_ASSIGN(const auto directory, find_module_directory({}, kernel, version));
  ExecModules modules;
  if (!directory) return modules;
  const auto wanted = exec_module_names();
  VMM_ASSIGN(modules.first, find_modules(*directory, std::vector<std::string>{wanted.begin(), wanted.end()}));
  return modules;
}

Result<void> write_initramfs(std::span<char*> arguments) {
  if (arguments.size() < 3) return usage_error("usage: exec_initramfs KERNEL OUTPUT FIELD...");
  std::string file = "vpmu exec request 1";
  file.push_back('\0');
  for (const char* const field : arguments.subspan(3)) (file += field).push_back('\0');
  VMM_ASSIGN(const ExecRequest request, read_request(file));
  VMM_ASSIGN(const auto modules, modules_for(arguments[1]));
  VMM_ASSIGN(const auto archive, make_exec_initramfs(modules, &request));
  std::ofstream out{arguments[2], std::ios::binary};
  out.write(reinterpret_cast<const char*>(archive.data()), static_cast<std::streamsize>(archive.size()));
  if (!out.flush()) return host_error("cannot write the initramfs");
  return {};
}

}  // namespace
}  // namespace vmm::tool

int main(int argc, char** argv) {
  const auto written = vmm::tool::write_initramfs({argv, static_cast<std::size_t>(argc)});
  if (!written) std::fprintf(stderr, "exec_initramfs: %s\n", vmm::describe(written.error()).c_str());
  return written ? 0 : 1;
}
