#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

// Runs a fuzz target without libFuzzer: on every file of a directory, on changed copies of them and on random bytes,
// the same each time.
//
//   NAME_replay CORPUS INPUTS LEAST_WORK
//
// Fails when all of them together amounted to less than LEAST_WORK: a target that rejects what it gets tests nothing.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::uint64_t fuzz_work();

namespace {

using Bytes = std::vector<std::uint8_t>;

void run(const Bytes& input) { (void)LLVMFuzzerTestOneInput(input.data(), input.size()); }

std::vector<Bytes> read_corpus(const char* directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator{directory}) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file{path, std::ios::binary};
    corpus.emplace_back(std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{});
  }
  return corpus;
}

Bytes random_bytes(std::mt19937_64& random) {
  Bytes bytes(random() % 400);
  for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
  return bytes;
}

Bytes changed(Bytes bytes, std::mt19937_64& random) {
  for (unsigned n = 1 + static_cast<unsigned>(random() % 8); n != 0 && !bytes.empty(); --n) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 3) {
      case 0: bytes[at] = static_cast<std::uint8_t>(random()); break;
      case 1: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(random())); break;
      default: bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at)); break;
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s CORPUS INPUTS LEAST_WORK\n", argv[0]);
    return 2;
  }
  const std::vector<Bytes> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no file in %s\n", argv[0], argv[1]);
    return 1;
  }
  for (const Bytes& input : corpus) run(input);
  std::mt19937_64 random{1};
  const std::uint64_t inputs = std::strtoull(argv[2], nullptr, 10);
  for (std::uint64_t n = 0; n < inputs; ++n)
    run(n % 2 == 0 ? random_bytes(random) : changed(corpus[random() % corpus.size()], random));
  std::printf("%zu files, %lu more inputs, work %lu\n", corpus.size(), inputs, fuzz_work());
  return fuzz_work() >= std::strtoull(argv[3], nullptr, 10) ? 0 : 1;
}
