#include "kernels.hpp"

// Everything lies in one section and nothing outside it is needed: no constants in memory, no library calls (see the
// compile options).
#define IN_KERNELS [[gnu::section("vpmu_kernels")]]
#define HELPER IN_KERNELS [[gnu::noinline]]

namespace vpmu::exec::bench {
namespace {

struct Random {
  std::uint64_t state;
  std::uint32_t next() {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state >> 33);
  }
};

constexpr std::int64_t few = 12;

HELPER void insertion_sort(std::uint32_t* a, std::int64_t low, std::int64_t high) {
  for (std::int64_t i = low + 1; i <= high; ++i) {
    const std::uint32_t value = a[i];
    std::int64_t j = i;
    for (; j > low && a[j - 1] > value; --j) a[j] = a[j - 1];
    a[j] = value;
  }
}

HELPER void quick_sort(std::uint32_t* a, std::int64_t low, std::int64_t high) {
  while (high - low > few) {
    const std::uint32_t pivot = a[low + (high - low) / 2];
    std::int64_t i = low;
    std::int64_t j = high;
    while (i <= j) {
      while (a[i] < pivot) ++i;
      while (a[j] > pivot) --j;
      if (i > j) break;
      const std::uint32_t other = a[i];
      a[i++] = a[j];
      a[j--] = other;
    }
    quick_sort(a, low, j);
    low = i;
  }
  insertion_sort(a, low, high);
}

struct Node {
  Node* left;
  Node* right;
  std::uint64_t key;
};

HELPER Node* insert(Node* root, Node* fresh) {
  if (root == nullptr) return fresh;
  Node* at = root;
  for (;;) {
    Node*& next = fresh->key < at->key ? at->left : at->right;
    if (next == nullptr) {
      next = fresh;
      return root;
    }
    at = next;
  }
}

HELPER std::uint64_t walk(const Node* n, std::uint64_t depth) {
  if (n == nullptr) return 0;
  return walk(n->left, depth + 1) * 3 + walk(n->right, depth + 1) + (n->key ^ depth);
}

/// A tokenizer's states.
enum class In : std::uint8_t { gap, word, number, comment, quoted };

HELPER In step(In in, std::uint8_t c) {
  switch (in) {
    case In::gap:
      if (c >= 'a' && c <= 'z') return In::word;
      if (c >= '0' && c <= '9') return In::number;
      return c == '#' ? In::comment : c == '"' ? In::quoted : In::gap;
    case In::word: return (c >= 'a' && c <= 'z') || c == '_' ? In::word : c == '"' ? In::quoted : In::gap;
    case In::number: return (c >= '0' && c <= '9') || c == '.' ? In::number : In::gap;
    case In::comment: return c == '\n' ? In::gap : In::comment;
    case In::quoted: return c == '"' ? In::gap : In::quoted;
  }
  return in;
}

}  // namespace

extern "C" {

IN_KERNELS std::uint64_t vpmu_kernel_sort(std::byte* memory, std::uint64_t work) {
  constexpr std::int64_t count = 16384;
  auto* const a = reinterpret_cast<std::uint32_t*>(memory);
  Random random{1};
  std::uint64_t sum = 0;
  for (; work > 0; --work) {
    for (std::int64_t i = 0; i < count; ++i) a[i] = random.next();
    quick_sort(a, 0, count - 1);
    for (std::int64_t i = 0; i < count; i += 64) sum = sum * 31 + a[i];
  }
  return sum;
}

IN_KERNELS std::uint64_t vpmu_kernel_chase(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t count = 4096;
  struct Link {
    Link* next;
    std::uint64_t value[7];
  };
  auto* const links = reinterpret_cast<Link*>(memory);
  // Steps of an odd stride that has no common factor with the count reach every link once.
  for (std::uint64_t i = 0; i < count; ++i) links[i] = {&links[(i + 1597) % count], {i}};
  std::uint64_t sum = 0;
  const Link* at = links;
  for (std::uint64_t i = 0; i < work * count; ++i) {
    sum += at->value[0];
    at = at->next;
  }
  return sum;
}

IN_KERNELS std::uint64_t vpmu_kernel_matrix(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t side = 64;
  auto* a = reinterpret_cast<std::uint64_t*>(memory);
  auto* const b = a + side * side;
  auto* c = b + side * side;
  Random random{2};
  for (std::uint64_t i = 0; i < 2 * side * side; ++i) a[i] = random.next();
  for (; work > 0; --work) {
    for (std::uint64_t i = 0; i < side; ++i)
      for (std::uint64_t j = 0; j < side; ++j) {
        std::uint64_t sum = 0;
        for (std::uint64_t k = 0; k < side; ++k) sum += a[i * side + k] * b[k * side + j];
        c[i * side + j] = sum;
      }
    auto* const other = a;
    a = c;
    c = other;
  }
  return a[side + 1] ^ a[side * side - 1];
}

IN_KERNELS std::uint64_t vpmu_kernel_hash(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t slots = 1U << 16, keys = 16384;
  struct Slot {
    std::uint64_t key, count;
  };
  auto* const table = reinterpret_cast<Slot*>(memory);
  Random random{3};
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < work * keys; ++i) {
    const std::uint64_t key = random.next() % (2 * keys) + 1;
    std::uint64_t hash = key * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
    std::uint64_t at = hash % slots;
    while (table[at].key != key && table[at].key != 0) at = (at + 1) % slots;
    if (table[at].key == key) ++found;
    table[at].key = key;
    found ^= ++table[at].count << 8;
  }
  return found;
}

IN_KERNELS std::uint64_t vpmu_kernel_tree(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t count = 8192;
  auto* const nodes = reinterpret_cast<Node*>(memory);
  Random random{4};
  std::uint64_t sum = 0;
  for (; work > 0; --work) {
    Node* root = nullptr;
    for (std::uint64_t i = 0; i < count; ++i) {
      nodes[i] = {nullptr, nullptr, random.next()};
      root = insert(root, &nodes[i]);
    }
    sum = sum * 7 + walk(root, 0);
  }
  return sum;
}

IN_KERNELS std::uint64_t vpmu_kernel_machine(std::byte* memory, std::uint64_t work) {
  constexpr std::uint64_t size = 1U << 16;
  auto* const text = reinterpret_cast<std::uint8_t*>(memory);
  Random random{5};
  for (std::uint64_t i = 0; i < size; ++i) {
    const std::uint32_t r = random.next() % 256;
    text[i] = static_cast<std::uint8_t>(r < 150   ? 'a' + r % 26
                                        : r < 200 ? '0' + r % 10
                                        : r < 202 ? '"'
                                        : r < 204 ? '#'
                                        : r < 212 ? '\n'
                                                  : ' ');
  }
  std::uint64_t tokens = 0;
  std::uint64_t hash = 0;
  for (; work > 0; --work) {
    In in = In::gap;
    for (std::uint64_t i = 0; i < size; ++i) {
      const In next = step(in, text[i]);
      if (next != in) {
        ++tokens;
        hash = (hash << 5 | hash >> 59) ^ static_cast<std::uint64_t>(next);
      }
      in = next;
    }
  }
  return hash ^ tokens;
}
}

}  // namespace vpmu::exec::bench
