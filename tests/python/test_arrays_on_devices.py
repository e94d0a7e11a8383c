"""Arrays on a GPU, as their libraries describe them (DLPack). The arrays of these tests only say so."""

import ctypes
import gc
import weakref

import kvreplay
import numpy as np
import pytest
from kvreplay.arrays import described
from program_beside_python import made_layer

WORDS = {"prefill": 112, "methods": ["window", "h2o", "snapkv"], "budgets": [32], "progress": False}
TENSORS = made_layer(1)
CUDA, PINNED, METAL, ROCM = 2, 3, 8, 10


class Owner(np.ndarray):
    """Memory whose release a test can see."""


class Elsewhere:
    """An array on a device of this kind. Its memory is the host's."""

    def __init__(self, array, kind=CUDA, breaks=False):
        self.array, self.kind, self.breaks = array, kind, breaks
        self.shape, self.dtype = array.shape, array.dtype
        self.streams, self.fetched = [], []

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream=None):
        if self.breaks:
            raise BufferError("this array cannot be exported")
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        kind = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int32.from_address(kind).value = self.kind
        return capsule

    def __array__(self, *_, **__):
        if self.kind in (CUDA, ROCM):
            raise TypeError("an array on a GPU is not converted as a whole")
        return self.array

    def __getitem__(self, where):
        self.fetched.append(where)
        return self.array[where]


def numbers(run):
    return run.table[["method", "rel_err_out_mean", "partition_err_max", "rmse"]].to_numpy().tolist()


@pytest.fixture(scope="module")
def expected():
    return numbers(kvreplay.replay(*TENSORS, **WORDS))


@pytest.mark.parametrize("kind", [CUDA, ROCM])
@pytest.mark.parametrize("breaks", [False, True])
def test_the_cores_fetch_an_array_on_a_device_head_by_head(expected, kind, breaks):
    arrays = [Elsewhere(x, kind, breaks) for x in TENSORS]
    assert numbers(kvreplay.replay(*arrays, **WORDS)) == expected
    for array in arrays:
        assert {head for head, _ in array.fetched} == set(range(array.shape[0]))


def test_pending_work_is_ordered_before_the_default_stream_of_cuda():
    arrays = [Elsewhere(x) for x in TENSORS]
    kvreplay.replay(*arrays, **WORDS)
    assert {stream for array in arrays for stream in array.streams} == {1}
    assert all(array.streams for array in arrays)


@pytest.mark.parametrize("kind", [PINNED, METAL])
def test_an_array_that_numpy_can_read_is_read_as_any_in_main_memory(expected, kind):
    arrays = [Elsewhere(x, kind) for x in TENSORS]
    assert numbers(kvreplay.replay(*arrays, **WORDS)) == expected
    assert [array.fetched for array in arrays] == [[], [], []]


def test_a_replay_releases_the_memory_of_a_device():
    owners = [x.copy().view(Owner) for x in TENSORS]
    alive = [weakref.ref(x) for x in owners]
    arrays = [Elsewhere(x) for x in owners]
    run = kvreplay.replay(*arrays, **WORDS)
    del owners, arrays, run
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def test_nan_on_a_device_is_named():
    q, k, v = TENSORS
    bad = q.copy()
    bad[1, 120, 3] = np.nan
    with pytest.raises(kvreplay.TraceError, match="q holds NaN at head 1, query 120, coordinate 3"):
        kvreplay.replay(Elsewhere(bad), k, v, **WORDS)


@pytest.mark.torch
def test_a_tensor_of_torch_is_exported_with_its_own_gpu_as_the_current_one(monkeypatch):
    torch = pytest.importorskip("torch")
    chosen = []

    class Chosen:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            chosen.append(self.device)

        def __exit__(self, *_):
            chosen.append(None)

    class Tensor(Elsewhere):
        device = torch.device("cuda:1")

        def detach(self):
            return self

        def __dlpack__(self, *, stream=None):
            assert chosen[-1] == self.device
            return super().__dlpack__(stream=stream)

    Tensor.__module__ = "torch"
    monkeypatch.setattr(torch.cuda, "device", Chosen)
    memory = described(Tensor(TENSORS[0]), "q")["data"].memory()
    assert "dltensor" in repr(memory) and chosen == [Tensor.device, None]
