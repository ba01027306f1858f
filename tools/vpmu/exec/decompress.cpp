#include "exec/decompress.hpp"

#include <lzma.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

namespace vmm::tool {
namespace {

constexpr std::size_t part_bytes = std::size_t{1} << 16;
constexpr std::uint64_t decoder_memory = std::uint64_t{128} << 20;  // enough for the largest window that is accepted
constexpr std::array<std::uint8_t, 6> xz_magic{0xFD, '7', 'z', 'X', 'Z', 0};
constexpr std::array<std::uint8_t, 4> zstd_magic{0x28, 0xB5, 0x2F, 0xFD};

template <std::size_t n>
bool begins_with(std::span<const std::byte> file, const std::array<std::uint8_t, n>& magic) {
  return file.size() >= n && std::equal(magic.begin(), magic.end(), reinterpret_cast<const std::uint8_t*>(file.data()));
}

Failure damaged() { return usage_error("it is damaged: it cannot be decompressed"); }
Failure too_large() { return usage_error("decompressed, it is larger than is allowed"); }

Result<std::vector<std::byte>> decompress_xz(std::span<const std::byte> file, std::uint64_t max) {
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> owner{&stream, lzma_end};
  if (lzma_stream_decoder(&stream, decoder_memory, LZMA_CONCATENATED) != LZMA_OK)
    return host_error("no memory to decompress");
  stream.next_in = reinterpret_cast<const std::uint8_t*>(file.data());
  stream.avail_in = file.size();
  std::vector<std::byte> content;
  std::vector<std::byte> part(part_bytes);
  for (lzma_ret state = LZMA_OK; state == LZMA_OK;) {
    stream.next_out = reinterpret_cast<std::uint8_t*>(part.data());
    stream.avail_out = part.size();
    state = lzma_code(&stream, LZMA_FINISH);
    if (state != LZMA_OK && state != LZMA_STREAM_END) return damaged();
    const std::size_t bytes = part.size() - stream.avail_out;
    if (bytes > max - content.size()) return too_large();
    content.insert(content.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(bytes));
  }
  return content;
}

Result<std::vector<std::byte>> decompress_zstd(std::span<const std::byte> file, std::uint64_t max) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream{ZSTD_createDStream(), ZSTD_freeDStream};
  if (!stream) return host_error("no memory to decompress");
  ZSTD_inBuffer input{.src = file.data(), .size = file.size(), .pos = 0};
  std::vector<std::byte> content;
  std::vector<std::byte> part(part_bytes);
  for (std::size_t left = 1; input.pos < input.size || left != 0;) {
    ZSTD_outBuffer output{.dst = part.data(), .size = part.size(), .pos = 0};
    const std::size_t before = input.pos;
    left = ZSTD_decompressStream(stream.get(), &output, &input);
    // No progress on either side: the rest of the file is missing.
    if (ZSTD_isError(left) != 0 || (output.pos == 0 && input.pos == before && left != 0)) return damaged();
    if (output.pos > max - content.size()) return too_large();
    content.insert(content.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(output.pos));
  }
  return content;
}

}  // namespace

Result<std::vector<std::byte>> decompress(std::span<const std::byte> file, std::uint64_t max) {
  if (begins_with(file, xz_magic)) return decompress_xz(file, max);
  if (begins_with(file, zstd_magic)) return decompress_zstd(file, max);
  if (file.size() > max) return too_large();
  return std::vector<std::byte>{file.begin(), file.end()};
}

}  // namespace vmm::tool
