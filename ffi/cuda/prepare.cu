// What a view's preparation keeps and needs, and its parts in their order.
#include "cuda/prepare.cuh"

namespace jaxrec {
namespace {

// Hands out parts of the scratch; with a null base only adds up sizes.
struct Arena {
  char* base;
  std::size_t used = 0;

  template <typename T>
  T* Take(std::size_t count) {
    T* p = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += Align(count * sizeof(T));
    return p;
  }
};

// Of what is kept for the backward pass, the place of each part in one view's bytes.
PairLayout KeptLayout(std::int64_t spheres, const Coarse& coarse) {
  PairLayout at;
  Arena arena = {nullptr};
  const auto place = [&](std::size_t bytes) {
    const std::size_t begin = arena.used;
    arena.Take<char>(bytes);
    return begin;
  };
  at.pool_size = kListsPerSphere * spheres;
  at.view = place(sizeof(ViewState));
  at.warps = place(sizeof(Bundle) * coarse.tiles() * coarse.warps());
  at.tiles = place(sizeof(Bundle) * coarse.tiles());
  at.lists = place(sizeof(CellList) * coarse.cells());
  at.records = place(sizeof(SphereRecord) * spheres);
  at.pool = place(sizeof(Candidate) * at.pool_size);
  at.bytes = arena.used;
  return at;
}

void LayoutScratch(Arena* arena, std::int64_t pairs, std::int64_t spheres, Prepared* p) {
  const Coarse& coarse = p->coarse;
  p->chunks = static_cast<int>((spheres + kChunk - 1) / kChunk);
  p->frames = arena->Take<Frame>(pairs);
  p->strips = arena->Take<std::uint32_t>(pairs * kSpanValues * coarse.strips());
  p->spans = arena->Take<std::uint32_t>(pairs * kSpanAlong * coarse.tiles());
  p->intervals = arena->Take<Interval>(pairs * coarse.lines());
  p->cells = arena->Take<Box>(pairs * coarse.cells());
  p->columns = arena->Take<Interval>(pairs * kMaxAxis);
  p->rows = arena->Take<Interval>(pairs * kMaxAxis);
  p->buckets = Buckets::For(spheres, pairs);
  const std::int64_t buckets = pairs * p->buckets.count;
  p->splitters = arena->Take<std::uint64_t>(buckets);
  p->held = arena->Take<int>(buckets * Buckets::kApart);
  p->stored = arena->Take<std::uint64_t>(buckets * p->buckets.room);
  p->spilled = arena->Take<int>(pairs);
  p->spill = arena->Take<std::uint64_t>(pairs * spheres);
  p->order = arena->Take<std::int32_t>(pairs * spheres);
  p->unsorted = arena->Take<SphereRecord>(pairs * spheres);
  p->ranges = arena->Take<TileRange>(pairs * spheres);
  p->counts = arena->Take<std::int32_t>(pairs * coarse.cells() * p->chunks);
  p->used = arena->Take<unsigned long long>(pairs);
  p->taken = arena->Take<int>(2 * pairs);
}

}  // namespace

Coarse CoarseOf(std::int64_t height, std::int64_t width, std::int64_t channels,
                std::int64_t tracked) {
  const int h = static_cast<int>(height), w = static_cast<int>(width);
  return HasRows(h, w, channels, tracked) ? Coarse::For<RowTile>(h, w)
                                          : Coarse::For<SmallTile>(h, w);
}

std::size_t BlendScratch(std::int64_t spheres, std::int64_t views, std::int64_t height,
                         std::int64_t width, std::int64_t channels, std::int64_t tracked) {
  Prepared p;
  p.coarse = CoarseOf(height, width, channels, tracked);
  // Parts are aligned once for all problems: this leaves room for that in each.
  Arena arena = {nullptr};
  LayoutScratch(&arena, views, spheres, &p);
  return arena.used;
}

std::size_t BlendKept(std::int64_t spheres, std::int64_t height, std::int64_t width,
                      std::int64_t channels, std::int64_t tracked) {
  return KeptLayout(spheres, CoarseOf(height, width, channels, tracked)).bytes;
}

const char* Restore(const BlendCall& call, Prepared* p) {
  p->coarse = CoarseOf(call.height, call.width, call.channels, call.tracked);
  p->kept = call.kept;
  p->at = KeptLayout(call.spheres, p->coarse);
  return p->at.bytes <= call.kept_bytes ? nullptr : "blend: what was kept is too small";
}

const char* Prepare(const BlendCall& call, const Stream& stream, Prepared* out) {
  if (const char* error = Restore(call, out)) return error;
  Prepared& p = *out;
  Arena arena = {static_cast<char*>(call.scratch)};
  LayoutScratch(&arena, call.pairs, call.spheres, &p);
  if (arena.used > call.scratch_bytes) return "blend: scratch is too small";
  if (call.spheres >= (std::int64_t{1} << 31) / 2) return "blend: more than 2^30 spheres";
  BoundRays(call, p, stream);
  if (call.spheres > 0) {
    SortSpheres(call, p, stream);
    MakeLists(call, p, stream);
  }
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
