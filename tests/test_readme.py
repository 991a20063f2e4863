"""The README's example runs as it stands and does what it says."""

import pathlib
import re

import jax

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_library_example(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, str(README), "exec"), {})
    loss, decibel = re.fullmatch(r"loss (\S+), (\S+) dB\n", capsys.readouterr().out).groups()
    assert float(decibel) > 24 and float(loss) < 0.05
