// Errors of handlers are values; these two make them short to return.
#pragma once

#include <string>

#include "xla/ffi/api/ffi.h"

namespace jaxrec {

inline xla::ffi::Error Check(bool good, const std::string& message) {
  return good ? xla::ffi::Error::Success() : xla::ffi::Error::InvalidArgument(message);
}

#define JAXREC_RETURN_IF_ERROR(expression) \
  if (xla::ffi::Error jaxrec_error = (expression); jaxrec_error.failure()) return jaxrec_error

}  // namespace jaxrec
