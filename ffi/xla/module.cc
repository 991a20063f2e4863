// Hands this library's handlers to Python. Built once for each backend, which sets JAXREC_MODULE
// to `_cpu` or `_cuda`.
#include "nanobind/nanobind.h"
#include "nanobind/stl/pair.h"
#include "xla/targets.h"

namespace nb = nanobind;

NB_MODULE(JAXREC_MODULE, m) {
  m.def("registrations", [] {
    nb::dict targets;
#define JAXREC_ADD(name, handler) targets[name] = nb::capsule(reinterpret_cast<void*>(handler));
    JAXREC_TARGETS(JAXREC_ADD)
#undef JAXREC_ADD
    return targets;
  });
  m.def("built_for", &jaxrec::BuiltFor);
  m.def("blend_scratch_bytes", &jaxrec::BlendScratchBytes);
  m.def("blend_kept_bytes", &jaxrec::BlendKeptBytes);
  m.def("blend_vjp_scratch_bytes", &jaxrec::BlendVjpScratchBytes);
  m.def("ffi_api", [] { return std::make_pair(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  m.attr("jaxlib") = JAXREC_JAXLIB;
}
