"""Includes that hide behind comments and continuations."""

import pytest

from evokernel.kernelfile import KernelFileError, make_kernel, parse

PLANS = {"cpp": "// @launch f(x, out)\n", "cuda": "// @launch f<<<1, 32>>>(x, out)\n"}
HIDDEN = ['# /**/ include "/etc/passwd"', '# \\\ninclude "/etc/passwd"', '#\\\n include "/etc/passwd"', "# /**/ define f g"]


@pytest.mark.parametrize("line", HIDDEN)
@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_a_hidden_include_is_refused(line: str, target: str) -> None:
    with pytest.raises(KernelFileError, match="line 2"):
        parse(make_kernel(f"{PLANS[target]}{line}\nvoid f(const float* x, float* y) {{}}\n", target))
