"""Loading of native libraries."""

import types

import pytest

from jaxrec import _ffi


def library(api):
    module = types.ModuleType("jaxrec._cpu")
    module.jaxlib, module.ffi_api = "9.9", lambda: api
    return module


def test_every_library_defines_the_same_targets():
    for module in _ffi.modules().values():
        assert tuple(sorted(module.registrations())) == _ffi.targets()
    assert _ffi.targets() == ("jaxrec.blend.v3", "jaxrec.blend_vjp.v3")


def test_a_library_newer_than_the_runtime_is_refused():
    with pytest.raises(ImportError, match=r"built against jaxlib 9\.9 \(FFI API 0\.99\).*upgrade"):
        _ffi._check_api(library((0, 99)))
    _ffi._check_api(library((0, 1)))
