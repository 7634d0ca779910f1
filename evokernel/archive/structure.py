"""The structure of a kernel's code as a vector: hashed n-grams of its tokens, for near duplicates and "kernels built like this one".

White space and comments do not count, nor the names that a kernel gives, nor any number, so that a kernel that is renamed, formatted or tuned anew
keeps its vector. Words of the language, of CUDA and of intrinsics stay, because they say how it is built. Plan lines count like code.
(Feature hashing with signs: Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning".)
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..kernelfile.scan import tokens

DIMENSION = 512
LENGTHS = (1, 2, 3, 4, 5)  # tokens of an n-gram
MODEL = "tokens-1/512"  # changes whenever the same code would get another vector

Vector = npt.NDArray[np.float32]

# What keeps its name: the language, its arithmetic, CUDA's names, intrinsics and attributes (which begin with an underscore).
_KNOWN = re.compile(
    r"_\w+|(?:alignas|alignof|auto|bool|break|case|char|class|const|constexpr|continue|default|do|double|else|enum|extern|false|float|for|goto|if|"
    r"inline|int|long|namespace|operator|register|return|short|signed|sizeof|static|struct|switch|template|this|true|typedef|typename|union|unsigned|"
    r"using|void|volatile|while|define|undef|ifdef|ifndef|endif|elif|pragma|include|omp|simd|parallel|reduction|collapse|schedule|unroll|std|asm)"
    r"|u?int\d+_t|size_t|half2?|(?:float|double|u?int|u?char|u?short|u?long|half|bfloat16|dim)\d|threadIdx|blockIdx|blockDim|gridDim|warpSize"
    r"|f?(?:exp|exp2|expm1|log|log2|log1p|sqrt|rsqrt|pow|tanh|erf|erfc|sin|cos|abs|max|min|fma|floor|ceil|round|div|mod)f?|mem(?:cpy|set)"
    r"|atomic\w+|cuda\w*|cooperative_groups|wmma|(?:this_|tiled_)?(?:grid|cluster|thread_block|partition)\w*"
    r"|launch|tune|const|require|scratch|persist|fill|prepare|call|flags|device|dtype|cdiv|in|and|or|not"
)  # fmt: skip
_MIX = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio in 64 bits: spreads neighbouring hashes


def embed(code: str) -> Vector:
    """The vector (DIMENSION,) of a kernel file, of length 1; of zeros where there is no code."""
    lines = [np.array(line, dtype=np.uint64) for line in _lines(code)]
    grams = [_grams(line, length) for line in lines for length in LENGTHS if len(line) >= length]
    if not grams:
        return np.zeros(DIMENSION, np.float32)
    hashes, times = np.unique(np.concatenate(grams), return_counts=True)
    # The logarithm keeps unrolled code, which repeats the same few n-grams, from drowning the rest.
    weights = (1 + np.log(times)) * np.where(hashes >> np.uint64(63), 1.0, -1.0)
    vector = np.bincount((hashes >> np.uint64(32)).astype(np.int64) % DIMENSION, weights, DIMENSION)
    return (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)


def _grams(line: npt.NDArray[np.uint64], length: int) -> npt.NDArray[np.uint64]:
    """One hash a run of `length` tokens."""
    mixed = np.zeros(len(line) - length + 1, np.uint64)
    for place in range(length):
        mixed = (mixed ^ line[place : place + len(mixed)]) * _MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed * _MIX


def _lines(code: str) -> list[list[int]]:
    """The hashes of the normalised tokens: the code as one line, and each plan line by itself, because their order says nothing."""
    main: list[int] = []
    lines = [main]
    for token in tokens(code):
        if token.kind == "comment" and (plan := re.match(r"//[ \t]*@([^#]*)", token.text)):
            lines.append(_plan(plan[1]))
        elif token.kind not in ("comment", "newline", "splice", "space"):
            main.append(_hash(token.kind, token.text))
    return lines


def _plan(text: str) -> list[int]:
    """A plan line begins with a token that code does not have; of a list of numbers one is left."""
    found = [_hash("punctuation", "@")]
    for token in tokens(text):
        value = _hash(token.kind, token.text)
        if token.kind not in ("space", "newline") and not (token.kind == "number" and value == found[-1]):
            found.append(value)
    return found


@lru_cache(maxsize=1 << 16)
def _hash(kind: str, text: str) -> int:
    if kind == "word" and _KNOWN.fullmatch(text):
        normal = text
    else:
        normal = text if kind == "punctuation" else f" {kind}"
    return zlib.crc32(normal.encode("utf-8", "surrogatepass")) | 1 << 40
