"""Hand-made signatures and devices for tests of kernel files."""

from evokernel.kernelfile import KernelFileError, make_kernel, parse, resolve
from evokernel.kernelfile.steps import Plan
from evokernel.records import Config, Device, Role, Scalar, ScalarSpec, Signature, TensorSpec, contiguous_stride

CPU = Device(name="test CPU", target="cpp", architecture="test", sm_count=4, l2_bytes=1 << 20)


def tensor(name: str, shape: tuple[int, ...], role: Role = Role.INPUT, dtype: str = "float32", stride: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(name, role, name, dtype, shape, contiguous_stride(shape) if stride is None else stride)


def signature(*tensors: TensorSpec, scalars: tuple[ScalarSpec, ...] = ()) -> Signature:
    return Signature(tensors, scalars)


ROWS = signature(
    tensor("x", (8, 16)),
    tensor("w", (32, 16), Role.PARAMETER),
    tensor("b", (32,), Role.BUFFER),
    tensor("out", (8, 32), Role.OUTPUT),
    scalars=(ScalarSpec("alpha", "alpha", 0.5, varies=True), ScalarSpec("power", "power", 3), ScalarSpec("mode", "mode", "sum")),
)


def plan_of(text: str, sig: Signature = ROWS, config: Config | None = None, device: Device = CPU, scalars: dict[str, Scalar] | None = None) -> Plan:
    return resolve(parse(make_kernel(text, device.target)), sig, device, config, scalars)


def error_of(text: str, sig: Signature = ROWS, device: Device = CPU) -> KernelFileError:
    """The error that this file must give."""
    try:
        plan_of(text, sig, device=device)
    except KernelFileError as error:
        return error
    raise AssertionError(f"accepted: {text!r}")
