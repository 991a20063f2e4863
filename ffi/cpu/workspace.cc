#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cpu/view.h"

namespace jaxrec {

void* Grow(Scratch* scratch, std::size_t bytes) {
  if (bytes <= scratch->size && scratch->data != nullptr) return scratch->data;
  constexpr std::size_t kAlignment = 64;
  std::size_t size = std::max<std::size_t>(bytes, 2 * scratch->size);
  size = (size + kAlignment) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) throw std::bad_alloc();
  if (scratch->data != nullptr) std::memcpy(data, scratch->data, scratch->size);
  std::free(scratch->data);
  *scratch = {data, size};
  return data;
}

Workspace::~Workspace() {
  for (Scratch* s : {&rays, &block, &tile, &group, &bounds, &nearest, &masks, &pixels, &stack})
    std::free(s->data);
}

BlockSums::~BlockSums() {
  std::free(ranks.data);
  std::free(sums.data);
}

}  // namespace jaxrec
