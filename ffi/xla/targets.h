// Every XLA custom call of this project. Each backend library must define all of them: one that
// lacks a kernel cannot be loaded.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

#define JAXREC_TARGETS(X)           \
  X("jaxrec.blend.v3", JaxrecBlend) \
  X("jaxrec.blend_vjp.v3", JaxrecBlendVjp)

#define JAXREC_DECLARE(name, handler) XLA_FFI_DECLARE_HANDLER_SYMBOL(handler);
JAXREC_TARGETS(JAXREC_DECLARE)
#undef JAXREC_DECLARE

namespace jaxrec {

// What the library was built for, for people: instruction sets or GPU architectures.
const char* BuiltFor();

// Bytes of the scratch result that one problem of blend needs on this platform, of that of
// blend_vjp, and of what the first keeps of one view for the second.
std::int64_t BlendScratchBytes(std::int64_t spheres, std::int64_t views, std::int64_t height,
                               std::int64_t width, std::int64_t channels, std::int64_t tracked);
std::int64_t BlendVjpScratchBytes(std::int64_t spheres, std::int64_t channels, bool moves);
std::int64_t BlendKeptBytes(std::int64_t spheres, std::int64_t height, std::int64_t width,
                            std::int64_t channels, std::int64_t tracked);

}  // namespace jaxrec
