"""The records that travel between the rooms: frozen, with their invariants checked on creation.

Times are microseconds (`*_us`), sizes bytes (`*_bytes`), strides elements, dtypes torch names without the prefix
("float32"). Everything here is plain data and passes through `codec.encode` and `codec.decode` unchanged, NaN and Inf included.
"""

from .batch import BatchCandidate, BatchOutcome, TaskFile
from .run import Attempt, Kernel, Placement, Proposal, Reply
from .task import (
    FLOATING,
    ITEMSIZE_BYTES,
    MODES,
    Config,
    Device,
    Domain,
    Number,
    Options,
    Precision,
    Role,
    Scalar,
    ScalarSpec,
    Signature,
    Task,
    TensorSpec,
    config_key,
    contiguous_stride,
    digest,
)
from .verdict import (
    PROTOCOL,
    Admission,
    BaselineTime,
    Bounds,
    Environment,
    ErrorRow,
    Interval,
    ModeTiming,
    Resources,
    Screen,
    Status,
    Timing,
    Verdict,
    unjudged,
)

__all__ = [
    "FLOATING", "ITEMSIZE_BYTES", "MODES", "PROTOCOL", "Admission", "Attempt", "BaselineTime", "BatchCandidate", "BatchOutcome", "Bounds",
    "Config", "Device", "Domain", "Environment", "ErrorRow", "Interval", "Kernel", "ModeTiming", "Number", "Options", "Placement", "Precision",
    "Proposal", "Reply", "Resources", "Role", "Scalar", "ScalarSpec", "Screen", "Signature", "Status", "Task", "TaskFile", "TensorSpec", "Timing",
    "Verdict", "config_key", "contiguous_stride", "digest", "unjudged",
]  # fmt: skip
